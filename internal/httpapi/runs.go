package httpapi

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/clienttools"
	"github.com/unitask/unitask/record"
)

// runOperations are the operations on runs and on the server.
func (s *Server) runOperations() map[string]operation {
	return map[string]operation{
		"createRun": s.createRun, "listRuns": s.listRuns, "getRun": s.getRun, "cancelRun": s.cancelRun,
		"getRunResult": s.getResult, "followRun": s.followRun,
		"getRunStdout": s.part(record.StdoutFile), "getRunStderr": s.part(record.StderrFile),
		"getRunNetlog": s.part(record.NetlogFile), "listRunArtifacts": s.listArtifacts, "getRunArtifact": s.getArtifact,
		"listToolCalls": s.listToolCalls, "answerToolCall": s.answerToolCall,
		"listQuestions": s.listQuestions, "answerQuestion": s.answerQuestion,
		"listImages": s.listImages, "getDoctor": s.doctor, "followCaller": s.followCaller,
	}
}

// runBody has the members of a run's request that run_code does not have.
type runBody struct {
	Stdin           string         `json:"stdin"`
	Dir             string         `json:"dir"`
	AllowNetAny     bool           `json:"allowNetAny"`
	Ask             []string       `json:"ask"`
	MaxConnections  int            `json:"maxConnections"`
	MaxUpload       int64          `json:"maxUploadBytes"`
	MaxDownload     int64          `json:"maxDownloadBytes"`
	CA              string         `json:"ca"`
	CPUs            float64        `json:"cpus"`
	OutputBytes     int64          `json:"outputBytes"`
	MaxArtifacts    int64          `json:"maxArtifactBytes"`
	Kernel          unitask.Kernel `json:"kernel"`
	KernelRetry     bool           `json:"kernelRetry"`
	FreshProcess    bool           `json:"freshProcess"`
	NodeArgs        []string       `json:"nodeArgs"`
	RequireHardware bool           `json:"requireHardware"`

	ClientTools map[string][]clienttools.Tool `json:"clientTools"`
}

func (b *runBody) apply(req *unitask.Request) {
	if b.Dir != "" {
		req.Dir = b.Dir
	}
	req.AllowNetAny, req.Ask, req.CA = b.AllowNetAny, b.Ask, b.CA
	req.MaxConnections, req.MaxUpload, req.MaxDownload = b.MaxConnections, b.MaxUpload, b.MaxDownload
	req.CPUs, req.OutputBytes, req.MaxArtifacts = b.CPUs, b.OutputBytes, b.MaxArtifacts
	req.Kernel, req.KernelRetry, req.FreshProcess = b.Kernel, b.KernelRetry, b.FreshProcess
	req.NodeArgs, req.RequireHardware = b.NodeArgs, b.RequireHardware
}

// job is a run of this API.
type job struct {
	s      *Server
	caller unitask.Caller
	req    unitask.Request
	stdin  string
	tools  map[string][]clienttools.Tool
	p      *progress
	id     string
	began  func(id string) // is called once it has an id
}

// createRun runs code. Until the run has an id, and with wait until its end, it ends with the call.
func (s *Server) createRun(c *call) (*answer, error) {
	var in runBody
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	req, err := s.shared.Request(c.caller, c.body, false)
	if err != nil {
		return nil, err
	}
	in.apply(&req)
	if len(in.ClientTools) > 0 && c.is("wait", true) {
		return nil, wrong(http.StatusUnprocessableEntity,
			"clientTools go with wait=false: a client that waits for the result can't answer calls")
	}
	done, err := s.shared.Begin()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.r.Context()))
	unbind := context.AfterFunc(c.r.Context(), cancel)
	stop := context.AfterFunc(s.shared.Context(), cancel)
	known := make(chan string, 1)
	j := &job{s: s, caller: c.caller, req: req, stdin: in.Stdin, tools: in.ClientTools,
		p: newProgress(c.caller.Name, cancel),
		began: func(id string) {
			c.began(id)
			known <- id
		}}
	run := func() (*unitask.Result, error) {
		defer done()
		defer cancel()
		defer stop()
		defer unbind()
		return s.recovering(func() (*unitask.Result, error) { return j.run(ctx) }, func(err error) {
			if j.id != "" {
				j.p.end(problemOf(err))
				s.progresses.trim()
			}
		})
	}
	if c.is("wait", true) {
		res, err := run()
		if res == nil {
			return nil, err
		}
		return &answer{Body: s.resultOf(c.r.Context(), res, 0)}, nil
	}
	release := c.keepLease()
	ended := make(chan error, 1)
	go func() {
		defer release()
		res, err := run()
		if res != nil && j.id == "" { // a fleet's
			known <- res.RunID
		}
		ended <- err
	}()
	var id string
	select {
	case id = <-known:
		unbind()
	case err := <-ended:
		if len(known) == 0 {
			return nil, err
		}
		id = <-known
	}
	return &answer{Status: http.StatusAccepted, Header: http.Header{"Location": {"/v1/runs/" + id}},
		Body: runState{id, record.Running}}, nil
}

// errPanic is the error of a call that a mistake of this server has ended.
var errPanic = &unitask.HostError{Op: "run", Err: errors.New("a mistake of the server; its log has the details")}

// recovering calls do. If do panics, recovering logs the panic, passes errPanic to failed, and returns it.
func (s *Server) recovering(do func() (*unitask.Result, error), failed func(error)) (res *unitask.Result, err error) {
	defer func() {
		if what := recover(); what != nil {
			s.log.Error("httpapi: panic", "what", what, "stack", string(debug.Stack()))
			res, err = nil, errPanic
			failed(err)
		}
	}()
	return do()
}

// run waits for a turn and runs the code. It releases what the run holds before it returns. The result is nil if
// nothing ran.
func (j *job) run(ctx context.Context) (*unitask.Result, error) {
	asked := time.Now()
	leave, err := j.s.shared.Enter(ctx, j.caller)
	if err != nil {
		return nil, err
	}
	defer leave()
	waited := time.Since(asked)
	if err := j.s.shared.Secrets(ctx, j.caller, &j.req); err != nil {
		return nil, err
	}
	tools, err := j.p.calls.Servers(ctx, j.tools) // in the caller's turn: hostile schemas take processor time
	if err != nil {
		return nil, err
	}
	stdout, stderr := &stream{to: j.p, kind: "stdout"}, &stream{to: j.p, kind: "stderr"}
	res, err := j.s.rt.RunFor(ctx, j.caller, j.req, unitask.IO{Stdin: strings.NewReader(j.stdin), Stdout: stdout,
		Stderr: stderr, Tools: tools, Events: j.event,
		Approve: func(_ context.Context, q unitask.Question) unitask.Verdict {
			j.p.add("question", q)
			return "" // answerQuestion answers
		}})
	leave()
	stdout.flush()
	stderr.flush()
	if res == nil {
		if j.id != "" {
			j.p.end(problemOf(j.s.shared.Hide(j.caller, err)))
			j.s.progresses.trim()
		}
		return nil, err
	}
	j.s.shared.HideResult(j.caller, res)
	j.s.shared.Ran(j.caller, res, waited, stdout.total, stderr.total)
	j.p.end(withoutOutput(res))
	j.s.progresses.trim()
	j.s.feeds.tell(j.caller.Name, "ended", map[string]any{"runId": res.RunID, "outcome": res.Outcome,
		"exitCode": res.ExitCode})
	return res, nil
}

// event passes on what happens in a run.
func (j *job) event(e unitask.Event) {
	j.s.shared.Event(e)
	switch e.Kind {
	case unitask.EventRecord:
		if j.id != "" {
			return
		}
		j.id = e.Message
		j.p.add("begun", map[string]string{"runId": j.id})
		j.s.progresses.add(j.id, j.p)
		j.s.feeds.tell(j.caller.Name, "begun", map[string]string{"runId": j.id})
		j.began(j.id)
	case unitask.EventStarted:
		j.p.add("started", struct{}{})
	case unitask.EventTransfer:
	default:
		j.p.add("note", map[string]string{"kind": string(e.Kind),
			"message": j.s.shared.Hide(j.caller, errors.New(e.Message)).Error()})
	}
}

// cancelTime is how long a call waits for the end of a run that it cancels.
const cancelTime = 20 * time.Second

// runState is a run's id and status.
type runState struct {
	RunID  string        `json:"runId"`
	Status record.Status `json:"status"`
}

func (s *Server) cancelRun(c *call) (*answer, error) {
	rec, err := s.record(c)
	if err != nil {
		return nil, err
	}
	p := s.progresses.find(rec.ID, c.caller.Name)
	switch {
	case rec.Status != record.Running:
		return &answer{Body: runState{rec.ID, rec.Status}}, nil
	case p == nil:
		return nil, &Problem{Status: http.StatusConflict, Code: "run.elsewhere",
			Detail: "the run was not begun by POST /v1/runs of this server", Remedy: "end it where it was begun"}
	}
	p.cancel()
	ctx, stop := context.WithTimeout(c.r.Context(), cancelTime)
	defer stop()
	if !p.wait(ctx) {
		return &answer{Status: http.StatusAccepted, Body: runState{rec.ID, record.Running}}, nil
	}
	if rec, err = s.record(c); err != nil {
		return nil, err
	}
	return &answer{Body: runState{rec.ID, rec.Status}}, nil
}

func (s *Server) followRun(c *call) (*answer, error) {
	rec, err := s.record(c)
	if err != nil {
		return nil, err
	}
	p := s.progresses.find(rec.ID, c.caller.Name)
	if p == nil {
		return nil, &Problem{Status: http.StatusGone, Code: "events.gone",
			Detail: "the run's events are not here: it ended some time ago, or was not begun by POST /v1/runs of this server",
			Remedy: "GET /v1/runs/" + rec.ID + "/result, or " + "/v1/runs/" + rec.ID}
	}
	return nil, follow(c, p)
}
