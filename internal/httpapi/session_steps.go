package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Limits of what runs in sessions.
const (
	maxRuns   = 256 // steps, commands and terminals at once without a request that waits for them, of all callers
	maxRunsOf = 32  // of one caller
)

// sessionResult is how a step or a command ended.
type sessionResult struct {
	RunID        string     `json:"runId"`
	Session      string     `json:"session"`
	Outcome      string     `json:"outcome"`
	ExitCode     int        `json:"exitCode"`
	Error        string     `json:"error,omitempty"`
	Value        string     `json:"value,omitempty"`
	Stdout       string     `json:"stdout"`
	StdoutBase64 string     `json:"stdoutBase64,omitempty"`
	Stderr       string     `json:"stderr"`
	StderrBase64 string     `json:"stderrBase64,omitempty"`
	Truncated    bool       `json:"truncated"`
	Hints        []run.Hint `json:"hints"`
	DurationMS   int64      `json:"durationMs"`
}

// sessionResultOf returns a result as its caller may see it. all is false if the streams are elsewhere.
func (s *Server) sessionResultOf(caller unitask.Caller, res *unitask.Result, all bool) sessionResult {
	s.shared.HideResult(caller, res)
	var cut [2]bool
	for i, text := range []*[]byte{&res.Stdout, &res.Stderr} {
		if cut[i] = len(*text) > shownBytes; cut[i] {
			*text = (*text)[:bounded.Whole((*text)[:shownBytes])]
		}
	}
	wire := res.JSON()
	out := sessionResult{RunID: res.RunID, Session: res.Session, Outcome: string(res.Outcome), ExitCode: res.ExitCode,
		Error: res.Error, Value: res.Value, Truncated: res.Truncated, Hints: append([]run.Hint{}, res.Hints...),
		DurationMS: res.Duration.Total.Milliseconds()}
	if all {
		out.Stdout, out.StdoutBase64, out.Stderr, out.StderrBase64 = wire.Stdout, wire.StdoutBase64, wire.Stderr,
			wire.StderrBase64
		out.Truncated = out.Truncated || cut[0] || cut[1]
	}
	return out
}

// stepOf returns the step that a call describes.
func (s *Server) stepOf(c *call, of *unitask.Session) (unitask.Step, error) {
	var in struct {
		Code, Language string
		TimeoutSeconds float64
		Files, Dirs    json.RawMessage
	}
	if err := c.decode(&in); err != nil {
		return unitask.Step{}, err
	}
	with, err := json.Marshal(map[string]any{"files": in.Files, "dirs": in.Dirs, "language": cmp.Or(in.Language,
		of.Language)})
	if err != nil {
		return unitask.Step{}, err
	}
	req, err := s.shared.Request(c.caller, with, true)
	return unitask.Step{Code: in.Code, Language: in.Language, Timeout: limit(of, in.TimeoutSeconds), Files: req.Files,
		Dirs: req.Dirs, InlineFiles: req.InlineFiles}, err
}

// limit returns the time limit that a call asks for; 0 seconds is the usual one.
func limit(of *unitask.Session, asked float64) time.Duration {
	return cmp.Or(seconds(asked), min(policy.DefaultTimeout, of.LongestStep()))
}

func (s *Server) runStep(c *call) (*answer, error) {
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	step, err := s.stepOf(c, of)
	if err != nil {
		return nil, err
	}
	if c.is("wait", true) {
		step.ResultBytes, step.Began = shownBytes+1, c.began
		return s.attended(c, func(ctx context.Context) (*unitask.Result, error) { return of.Run(ctx, step) })
	}
	return s.detached(c, of, func(ctx context.Context, p *progress, began func(started)) (*unitask.Result, error) {
		leave, err := s.turn(ctx, c.caller)
		if err != nil {
			return nil, err
		}
		defer leave()
		stdout, stderr := &stream{to: p, kind: "stdout"}, &stream{to: p, kind: "stderr"}
		step.Stdout, step.Stderr, step.ResultBytes = stdout, stderr, 1
		step.Began = func(run string) { began(started{RunID: run, Session: of.ID}) }
		res, err := of.Run(ctx, step)
		stdout.flush()
		stderr.flush()
		return res, err
	})
}

// turn waits for a caller's turn to run something, for which a closing server waits until leave is called.
func (s *Server) turn(ctx context.Context, caller unitask.Caller) (leave func(), err error) {
	done, err := s.shared.Begin()
	if err != nil {
		return nil, err
	}
	out, err := s.shared.Enter(ctx, caller)
	if err != nil {
		done()
		return nil, err
	}
	return sync.OnceFunc(func() {
		out()
		done()
	}), nil
}

// attended runs something while its request waits.
func (s *Server) attended(c *call, do func(context.Context) (*unitask.Result, error)) (*answer, error) {
	leave, err := s.turn(c.r.Context(), c.caller)
	if err != nil {
		return nil, err
	}
	defer leave()
	res, err := do(c.r.Context())
	leave()
	if res == nil || errors.As(err, new(*unitask.BusyError)) { // nothing ran
		return nil, err
	}
	if s.shared.Draw(c.r.Context(), int64(len(res.Stdout)+len(res.Stderr))*escapedByte) != nil {
		res.Stdout, res.Stderr, res.Truncated = nil, nil, true // its record has them
	}
	return &answer{Body: s.sessionResultOf(c.caller, res, true)}, nil
}

// started is the answer about work that has begun.
type started struct {
	RunID   string `json:"runId"`
	Session string `json:"session"`
	PID     int    `json:"pid,omitempty"`
}

// detached runs something that outlives its request, and answers when it has begun. do calls began then; it ends when
// ctx does.
func (s *Server) detached(c *call, of *unitask.Session,
	do func(ctx context.Context, p *progress, began func(started)) (*unitask.Result, error)) (*answer, error) {
	leave, err := s.sessions.runs.take(c.caller.Name, maxRuns, maxRunsOf, "steps and commands that go on")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(s.shared.Context())
	p := newProgress(c.caller.Name, cancel)
	p.session = of.ID
	release := c.keepLease()
	begun, failed := make(chan started, 1), make(chan error, 1)
	s.going.Go(func() {
		defer release()
		defer cancel()
		res, err := s.recovering(func() (*unitask.Result, error) {
			return do(ctx, p, func(is started) {
				s.progresses.add(is.RunID, p)
				c.began(is.RunID)
				begun <- is
			})
		}, func(error) {})
		leave()
		failed <- err
		if res != nil {
			p.end(s.sessionResultOf(c.caller, res, false))
		} else {
			p.end(map[string]any{"session": of.ID, "outcome": "failed", "exitCode": run.ExitHost,
				"error": problemOf(s.shared.Hide(c.caller, err)).Detail})
		}
		s.progresses.trim()
	})
	var is started
	select {
	case is = <-begun:
	case <-c.r.Context().Done():
		cancel()
		<-failed // nothing calls c.began after this call
		return nil, context.Cause(c.r.Context())
	case err := <-failed:
		select {
		case is = <-begun:
		default:
			return nil, cmp.Or(err, error(&Problem{Status: http.StatusConflict, Code: "cancelled",
				Detail: "it ended before it began"}))
		}
	}
	return &answer{Status: http.StatusAccepted, Header: at("/v1/sessions/" + of.ID + "/runs/" + is.RunID + "/events"),
		Body: is}, nil
}

// progressOf returns the progress of the run that the path names, in its session.
func (s *Server) progressOf(c *call) (*progress, error) {
	if _, err := s.view(c, c.text("id")); err != nil {
		return nil, err
	}
	p := s.progresses.find(c.text("run"), c.caller.Name)
	if p == nil || p.session != c.text("id") {
		return nil, noSessionRun(c)
	}
	return p, nil
}

// noSessionRun returns the problem of a run that never was, or is not the session's.
func noSessionRun(c *call) error {
	return &Problem{Status: http.StatusNotFound, Code: "run.gone",
		Detail: "the session has no run " + quoted(c.text("run")) + " that goes on, or that ended a short time ago",
		Remedy: "start one with wait=false"}
}

func (s *Server) followSessionRun(c *call) (*answer, error) {
	p, err := s.progressOf(c)
	if err != nil {
		return nil, err
	}
	return nil, follow(c, p)
}

func (s *Server) cancelSessionRun(c *call) (*answer, error) {
	p, err := s.progressOf(c)
	if err != nil {
		return nil, err
	}
	p.cancel()
	return &answer{Status: http.StatusNoContent}, nil
}
