package mcp

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/clienttools"
	"github.com/unitask/unitask/internal/tail"
)

// Some runs outlive their calls. A client of revision 2026-07-28 is not asked in the middle of a call. Instead the call
// ends with the question (input_required), and is made again with the answer. The machine is stopped meanwhile, at most
// as long as a question is open. A call may also end with a task (tasks.go), or leave its run in the background.

const (
	roundKept  = time.Minute // how long the result of a run is kept for a client that has not returned
	roundInput = "approval"  // the name of the requested input
)

// rounds are the runs whose calls have ended before them, or may.
type rounds struct {
	mu   sync.Mutex
	open map[string]*round // by id, which is the first part of a request's state
}

// round is one such run.
type round struct {
	id, caller string
	call       [sha256.Size]byte // of the tool and its arguments, which the repeated call must have, too
	began      time.Time
	cancel     context.CancelFunc
	news       chan struct{} // there is a question
	done       chan struct{} // closed when the run has ended, with these:
	out        *sdk.CallToolResult
	res        any
	err        error

	mu        sync.Mutex
	waits     bool             // a call waits for it
	pending   []*roundQuestion // open questions without an answer
	kept      time.Duration    // how long its result is kept
	expiry    *time.Timer      // ends that time; nil before the run has ended
	detached  bool             // its client asks for its state: it is a task, or in the background
	cancelled bool             // its client has cancelled it
	changed   time.Time        // the last change of its state
	runID     string           // of its record, "" before it has one
	output    tail.Buffer      // what it has printed in the background

	calls  clienttools.Calls // of its client's functions
	called chan struct{}     // there is such a call
}

type roundQuestion struct {
	ctx    context.Context // ends with the question
	form   func() *sdk.ElicitParams
	state  string
	answer chan unitask.Verdict // accepts one
}

// inRounds reports whether the client of a call is asked at the call's end.
func inRounds(caller unitask.Caller, req *sdk.CallToolRequest) bool {
	return req.ProtocolVersion() >= stateless && canAsk(caller, req)
}

type runWith func(ctx context.Context, ask asker) (*sdk.CallToolResult, any, error)

// alone is a run in a goroutine of its own, where a panic would end the server: it is the run's error. Other errors are
// those that the caller may see.
func (s *Server) alone(caller unitask.Caller, run runWith) runWith {
	return func(ctx context.Context, ask asker) (out *sdk.CallToolResult, res any, err error) {
		defer func() {
			if what := recover(); what != nil {
				s.opts.Log.Error("panic", "what", what, "stack", string(debug.Stack()))
				err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		out, res, err = run(ctx, ask)
		return out, res, s.tell(caller, err)
	}
}

// round begins a run, or continues the one that a call answers, and returns its result or its question.
func (s *Server) round(ctx context.Context, caller unitask.Caller, req *sdk.CallToolRequest,
	run runWith) (*sdk.CallToolResult, any, error) {
	var r *round
	if state := req.Params.RequestState; state != "" {
		var err error
		if r, err = s.rounds.find(state, caller.Name, callOf(req)); err != nil {
			return nil, nil, err
		}
		if answered, ok := req.Params.InputResponses[roundInput].(*sdk.ElicitResult); ok { // else it is asked again
			r.answer(state, verdict(answered, nil))
		}
	} else {
		r = s.rounds.begin(ctx, caller.Name, callOf(req), s.alone(caller, run))
	}
	late := taskOf(ctx).timer()
	for {
		if q := r.question(); q != nil {
			return &sdk.CallToolResult{RequestState: q.state,
				InputRequests: sdk.InputRequestMap{roundInput: q.form()}}, nil, nil
		}
		select {
		case <-r.news:
			continue
		case <-late:
			if s.detach(req, r) {
				taskOf(ctx).made = r
				return nil, nil, errTask
			}
			late = nil
			continue
		case <-ctx.Done():
			r.cancel()
			<-r.done
		case <-r.done:
			if r.question() != nil { // it came at the end, and stays open
				continue
			}
		}
		break
	}
	s.rounds.drop(r)
	return r.out, r.res, r.err
}

// callOf hashes a call's tool and arguments.
func callOf(req *sdk.CallToolRequest) [sha256.Size]byte {
	return sha256.Sum256([]byte(req.Params.Name + " " + string(req.Params.Arguments)))
}

func (all *rounds) begin(ctx context.Context, caller string, call [sha256.Size]byte, run runWith) *round {
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	now := time.Now()
	r := &round{id: rand.Text(), caller: caller, call: call, began: now, changed: now, kept: roundKept, cancel: cancel,
		waits: true, news: make(chan struct{}, 1), done: make(chan struct{}),
		output: tail.Buffer{Size: unitask.MaxKeptOutput}, called: make(chan struct{}, 1)}
	r.calls.Began = func(*clienttools.Call) {
		select {
		case r.called <- struct{}{}:
		default:
		}
	}
	all.mu.Lock()
	if all.open == nil {
		all.open = map[string]*round{}
	}
	all.open[r.id] = r
	all.mu.Unlock()
	go func() {
		defer cancel()
		r.out, r.res, r.err = run(live, r.ask)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.changed = time.Now()
		if r.detached {
			r.trim()
		}
		r.expiry = time.AfterFunc(r.kept, func() { all.drop(r) })
		close(r.done)
	}()
	return r
}

// find returns the caller's run that a state names. Only one call may continue it.
func (all *rounds) find(state, caller string, call [sha256.Size]byte) (*round, error) {
	id, _, _ := strings.Cut(state, ".")
	all.mu.Lock()
	r := all.open[id]
	all.mu.Unlock()
	if r == nil || r.caller != caller {
		return nil, errors.New("requestState: no run waits for this answer; it has ended, and list_runs has it")
	}
	if r.call != call {
		return nil, errors.New("requestState: it belongs to a call of another tool, or with other arguments")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waits {
		return nil, errors.New("requestState: another call waits for this run")
	}
	r.waits = true
	return r, nil
}

// drop forgets a run that has ended.
func (all *rounds) drop(r *round) {
	<-r.done
	r.mu.Lock()
	r.expiry.Stop()
	r.mu.Unlock()
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.open, r.id)
}

// question returns the first open question, with which the waiting call ends.
func (r *round) question() *roundQuestion {
	q := r.first()
	if q != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.waits = false
	}
	return q
}

// first returns the first open question.
func (r *round) first() *roundQuestion {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) == 0 {
		return nil
	}
	return r.pending[0]
}

// ask asks the client at the end of the waiting call, or of the next one, as long as the question is open.
func (r *round) ask(ctx context.Context, form func() *sdk.ElicitParams) unitask.Verdict {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := &roundQuestion{ctx, form, r.id + "." + rand.Text(), make(chan unitask.Verdict, 1)}
	r.mu.Lock()
	r.pending, r.changed = append(r.pending, asked), time.Now()
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
	select {
	case said := <-asked.answer:
		return said
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.close(asked.state)
	return ""
}

// answer answers the question of a state, if the question is still open. No answer counts, too: unitask approve
// may give another.
func (r *round) answer(state string, said unitask.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.close(state); q != nil {
		q.answer <- said
	}
}

// close returns the open question of a state, which is not open any more, or nil. The caller holds the lock.
func (r *round) close(state string) *roundQuestion {
	i := slices.IndexFunc(r.pending, func(q *roundQuestion) bool { return q.state == state })
	if i < 0 {
		return nil
	}
	q := r.pending[i]
	r.pending, r.changed = slices.Delete(r.pending, i, i+1), time.Now()
	return q
}

// elicitation returns the form that a client shows its user.
func elicitation(q unitask.Question) *sdk.ElicitParams {
	return &sdk.ElicitParams{Mode: "form", RequestedSchema: approvalForm,
		Message: fmt.Sprintf("The code of run %s wants %s. Its machine stands still for %s at most.", q.RunID, q.Wants(),
			time.Until(q.Until).Round(time.Second))}
}
