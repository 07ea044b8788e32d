package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/clienttools"
	"github.com/unitask/unitask/policy"
)

// Commands and code in the background, and waiting for them.

// Limits of a wait, in seconds: clients give up after 60.
const (
	usualWait = 20
	maxWait   = 50
)

// gatherPeriod is the time between two looks at a command that prints.
const gatherPeriod = 50 * time.Millisecond

// running is the outcome of a command that still runs.
const running = "running"

// waitArgs are wait_command's arguments.
type waitArgs struct {
	Run         string       `json:"run"`
	Answers     []callAnswer `json:"answers,omitempty"`
	AfterSeq    int64        `json:"afterSeq,omitempty"`
	WaitSeconds *float64     `json:"waitSeconds,omitempty"`
	MaxOutput   *int         `json:"maxOutput,omitempty"`
}

var waitDescriptions = map[string]string{
	"run":         "the run's id, which a call with background gives",
	"answers":     "to calls of clientTools: {call, and result (any JSON) or error (a text)}",
	"afterSeq":    "the seq of the last answer: what it had printed until then is left out",
	"waitSeconds": "how long to wait for its end; 20 if not given, 0 for not at all",
	"maxOutput":   aboutMaxOutput,
}

// waitResult is the state of a background command.
type waitResult struct {
	Run       string    `json:"run"`
	Session   string    `json:"session,omitempty"`
	Outcome   string    `json:"outcome" jsonschema:"running, or how it ended"`
	ExitCode  *int      `json:"exitCode,omitempty"`
	Error     string    `json:"error,omitempty"`
	Seq       int64     `json:"seq" jsonschema:"afterSeq of the next call"`
	Lost      int64     `json:"lost,omitempty"` // bytes of its output before this that are kept in the run's record only
	Output    string    `json:"output" jsonschema:"what it printed on stdout and stderr"`
	Shown     int64     `json:"shown"`               // bytes of the output that are in Output
	Total     int64     `json:"total"`               // bytes that it has printed, on both
	Truncated bool      `json:"truncated,omitempty"` // it has printed more than is kept
	Resource  string    `json:"resource" jsonschema:"all of its stdout; also with stderr in place of stdout"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"` // the end of the session, which is its end

	Calls []*clienttools.Call `json:"calls,omitempty" jsonschema:"the code waits for their answers"`
}

func (s *Server) addWait() {
	no := false
	addTool(s, &sdk.Tool{
		Name: "wait_command", Title: "Wait for a run in the background",
		Description: "Wait for the end of what run_code or session_command left in the background. Returns what it has " +
			"printed since afterSeq, at its end, at a call of clientTools, or after waitSeconds.",
		InputSchema: inputSchema[waitArgs](waitDescriptions, func(p map[string]*jsonschema.Schema) {
			p["waitSeconds"].Minimum, p["waitSeconds"].Maximum = float(0), float(maxWait)
			p["afterSeq"].Minimum = float(0)
			p["answers"].Items = &jsonschema.Schema{Type: "object"}
			boundMaxOutput(p)
		}),
		OutputSchema: outputSchema[waitResult](nil),
		Annotations:  &sdk.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no},
	}, told(s, s.wait))
}

// commandSchema is the schema of session_command's results: a background command has no exit code yet.
func commandSchema() *jsonschema.Schema {
	schema := outputSchema[ran](map[string]string{"outcome": "as in run_code, or running"})
	for name := range schema.Properties { // the others are as in run_code
		if !slices.Contains([]string{"runId", "session", "outcome", "exitCode", "stdout", "stderr", "expiresAt"}, name) {
			delete(schema.Properties, name)
		}
	}
	schema.Required = []string{"runId", "session", "outcome"}
	return schema
}

// startCommand starts a command in the background.
func (s *Server) startCommand(ctx context.Context, of *heldSession, in commandArgs, command unitask.Command,
	approve unitask.Approver) (*sdk.CallToolResult, any, error) {
	if in.Stdin != "" {
		return nil, nil, errors.New("stdin does not go with background: write a file, and read it with <")
	}
	command.Approve = approve
	run, err := of.Start(ctx, command)
	if err != nil {
		return nil, nil, err
	}
	text := fmt.Sprintf(
		"run %s goes on in the background: wait_command has what it prints\nsession %s, expires at %s",
		run,
		of.ID,
		of.view().ExpiresAt.Format(time.RFC3339),
	)
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}},
		map[string]any{"runId": run, "session": of.ID, "outcome": running, "expiresAt": of.view().ExpiresAt}, nil
}

// errNoRun is the answer for a run that never existed, is another caller's, or belongs to an ended session.
var errNoRun = errors.New(
	"is not in the background, or its session has ended; inspect_run has those that are over")

func (s *Server) wait(ctx context.Context, req *sdk.CallToolRequest, in waitArgs) (*sdk.CallToolResult, any, error) {
	caller := s.caller(req.Extra)
	if r := s.rounds.detached(in.Run, caller.Name); r != nil {
		return s.waitRun(ctx, caller, req, r, in)
	}
	none := fmt.Errorf("run %.80q %w", in.Run, errNoRun)
	if len(in.Answers) > 0 {
		return nil, nil, none
	}
	rec, err := s.rt.Runs().Get(in.Run)
	if err != nil || rec.Session == "" {
		return nil, nil, none
	}
	of, err := s.held.find(rec.Session, caller.Name)
	if err != nil {
		return nil, nil, none
	}
	if inRounds(caller, req) {
		return s.round(ctx, caller, req, func(live context.Context, ask asker) (*sdk.CallToolResult, any, error) {
			defer of.AnswerBy(ask.approver())()
			return s.waitNow(live, caller, of, in)
		})
	}
	return s.waitNow(ctx, caller, of, in)
}

// waitNow waits for a caller's background command in a session, at most as long as a call may take.
func (s *Server) waitNow(ctx context.Context, caller unitask.Caller, of *heldSession, in waitArgs) (*sdk.CallToolResult,
	any, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	seconds := float64(usualWait)
	if in.WaitSeconds != nil {
		seconds = *in.WaitSeconds
	}
	most := usualShown
	if in.MaxOutput != nil {
		most = *in.MaxOutput
	}
	is, err := gather(ctx, of, in.Run, in.AfterSeq, time.Now().Add(time.Duration(seconds*float64(time.Second))), most)
	if err != nil {
		return nil, nil, err
	}
	text := is.Text()
	out := waitResult{Run: in.Run, Session: of.ID, Outcome: running, Seq: is.Seq, Lost: is.Lost, Total: is.Seq,
		Resource: partURI(in.Run, "stdout"), ExpiresAt: of.view().ExpiresAt}
	if is.Result == nil { // an incomplete character is part of the next answer
		whole := bounded.Whole(text)
		out.Seq -= int64(len(text) - whole)
		text = text[:whole]
	} else {
		s.ended(caller, is.Result, &out)
	}
	shown := stream{live: &live{}, most: most}
	_, _ = shown.Write(text)
	out.Output, out.Shown = shown.shown(most, "the resources have them")
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: out.text()}}}, &out, nil
}

// text returns the state for models.
func (w *waitResult) text() string {
	text := fmt.Sprintf("%s; afterSeq %d of the next call gives what comes then", w.Outcome, w.Seq)
	switch {
	case w.ExitCode != nil:
		text = fmt.Sprintf("exit code %d", *w.ExitCode)
	case w.Outcome != running:
		text = w.Outcome + ": " + line(w.Error)
	}
	if w.Lost > 0 {
		text += fmt.Sprintf("\n%d bytes before this output are left out: %s has all of it", w.Lost, w.Resource)
	}
	text += callsText(w.Calls)
	if w.Output != "" {
		text += "\n--- output\n" + w.Output
	}
	return text
}

// gather waits for the end of a command. It waits at most until a time, or until the command has printed most bytes
// after a position, or half of what is kept.
func gather(ctx context.Context, of *heldSession, run string, after int64, until time.Time,
	most int) (is unitask.Background, err error) {
	enough := int64(min(most, unitask.MaxKeptOutput/2))
	if most < leastShown { // its output is not wanted
		enough = math.MaxInt64
	}
	for seq := after; ; seq = is.Seq {
		is, err = of.Wait(ctx, run, seq, time.Until(until))
		if err != nil {
			return is, err
		}
		if is.Result != nil || is.Seq-after >= enough || !time.Now().Before(until) {
			return of.Wait(ctx, run, after, 0)
		}
		select { // a command that prints byte by byte wakes nobody each time
		case <-time.After(gatherPeriod):
		case <-ctx.Done():
		}
	}
}

// ended returns how a command ended, as its caller may see it.
func (s *Server) ended(caller unitask.Caller, res *unitask.Result, out *waitResult) {
	out.Outcome, out.Error, out.Truncated = string(res.Outcome), res.Error, res.Truncated
	if remote(caller) {
		out.Error = s.hider.all(out.Error)
	}
	if res.Outcome == unitask.OutcomeExited {
		out.ExitCode = &res.ExitCode
	}
}

// runPatience bounds how long a call waits for the record of its run in the background. Packages may be installed
// first.
const runPatience = 20 * time.Second

// errManyBehind means that a caller has too much in the background.
var errManyBehind = &LimitError{Limit: "background", Most: callersTasks,
	Text: fmt.Sprintf("%d runs are in the background, or their results wait: wait_command fetches them", callersTasks)}

// runBehind starts a run that outlives its call. The call returns when the run has a record, or has ended.
func (s *Server) runBehind(ctx context.Context, caller unitask.Caller, req *sdk.CallToolRequest, in runArgs,
	run unitask.Request) (*sdk.CallToolResult, *ran, error) {
	made, begun := make(chan *round, 1), make(chan struct{})
	asks := canAsk(caller, req)
	r := s.rounds.begin(ctx, caller.Name, callOf(req), s.alone(caller, func(life context.Context, ask asker) (
		*sdk.CallToolResult, any, error) {
		r := <-made
		if r == nil {
			return nil, nil, errManyBehind
		}
		in.calls = &r.calls
		first := sync.OnceFunc(func() { close(begun) })
		l := &live{ctx: life, req: req, done: make(chan struct{}), kept: &r.output, onRun: func(id string) {
			r.named(id)
			first()
		}}
		if !asks {
			ask = nil
		}
		return s.runNow(life, l, caller, req, in, run, ask.approver())
	}))
	if !s.detach(req, r) {
		close(made)
		s.rounds.drop(r)
		return nil, nil, errManyBehind
	}
	made <- r
	late := time.NewTimer(runPatience)
	defer late.Stop()
	select {
	case <-begun:
	case <-late.C:
	case <-ctx.Done(): // its client does not learn how to find it
		r.stop()
		return nil, nil, context.Cause(ctx)
	case <-r.done:
		s.rounds.drop(r)
		res, _ := r.res.(*ran)
		return r.out, res, r.err
	}
	id := cmp.Or(r.record(), r.id)
	text := fmt.Sprintf("run %s goes on in the background: wait_command has what it prints, and its result", id)
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}},
		&ran{RunID: id, Outcome: running, Policy: ranPolicy{Denials: []policy.Denial{}}}, nil
}

// named receives the id of the run's record.
func (r *round) named(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runID = id
}

// waitRun waits for the end of a run in the background, or until it has printed enough. It asks the waiting call's user
// what the run wants.
func (s *Server) waitRun(ctx context.Context, caller unitask.Caller, req *sdk.CallToolRequest, r *round,
	in waitArgs) (*sdk.CallToolResult, any, error) {
	if answered, ok := req.Params.InputResponses[roundInput].(*sdk.ElicitResult); ok {
		r.answer(req.Params.RequestState, verdict(answered, nil))
	}
	if err := r.answerCalls(in.Answers); err != nil {
		return nil, nil, err
	}
	seconds, most := float64(usualWait), usualShown
	if in.WaitSeconds != nil {
		seconds = *in.WaitSeconds
	}
	if in.MaxOutput != nil {
		most = *in.MaxOutput
	}
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for {
		if q := r.first(); q != nil && canAsk(caller, req) {
			if inRounds(caller, req) {
				return &sdk.CallToolResult{RequestState: q.state,
					InputRequests: sdk.InputRequestMap{roundInput: q.form()}}, nil, nil
			}
			said := askerOf(ctx, caller, req)(q.ctx, q.form)
			if ctx.Err() != nil { // the next call asks again
				return nil, nil, context.Cause(ctx)
			}
			r.answer(q.state, said)
		}
		_, _, end := r.output.Since(math.MaxInt64) // copies nothing
		if r.ended() || len(r.waitingCalls()) > 0 || !time.Now().Before(until) ||
			most >= leastShown && end-in.AfterSeq >= int64(most) {
			return s.gathered(r, in, most)
		}
		select {
		case <-r.done:
		case <-r.called:
		case <-time.After(min(gatherPeriod, time.Until(until))):
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-s.ctx.Done():
			return nil, nil, errClosing
		}
	}
}

// gathered returns the state of a run in the background. At its end that is run_code's own result.
func (s *Server) gathered(r *round, in waitArgs, most int) (*sdk.CallToolResult, any, error) {
	over := r.ended()
	text, lost, seq := r.output.Since(in.AfterSeq)
	out := waitResult{Run: in.Run, Outcome: running, Seq: seq, Lost: lost, Total: seq}
	if id := r.record(); id != "" {
		out.Resource = partURI(id, "stdout")
	}
	if !over { // an incomplete character is part of the next answer
		whole := bounded.Whole(text)
		out.Seq -= int64(len(text) - whole)
		text = text[:whole]
	}
	shown := stream{live: &live{}, most: most}
	_, _ = shown.Write(text)
	out.Output, out.Shown = shown.shown(most, "the resources have them")
	if !over {
		out.Calls = r.waitingCalls()
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: out.text()}}}, &out, nil
	}
	res, _ := r.res.(*ran)
	if r.err != nil || res == nil {
		return nil, nil, cmp.Or(r.err, fmt.Errorf("run %.80q %w", in.Run, errNoRun)) // a task of another tool
	}
	out.Outcome, out.Error, out.Truncated = string(res.Outcome), res.Error, res.Truncated
	if res.Outcome == unitask.OutcomeExited {
		out.ExitCode = &res.ExitCode
	}
	said := *r.out
	said.Meta = maps.Clone(said.Meta) // the SDK writes to it, and others may wait, too
	return &said, &out, nil
}
