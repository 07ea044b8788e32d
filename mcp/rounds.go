package mcp

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// A client of revision 2026-07-28 is not asked in the middle of a call. Instead the call ends with the question
// (input_required), and is made again with the answer. So its run outlives the call. Its machine is stopped
// meanwhile, at most as long as a question is open.

const (
	roundKept  = time.Minute // how long the result of a run is kept for a client that has not returned
	roundInput = "approval"  // the name of the requested input
)

// rounds are the runs whose calls have ended with a question, or may.
type rounds struct {
	mu   sync.Mutex
	open map[string]*round // by the first part of a request's state
}

// round is one such run.
type round struct {
	id, caller string
	call       [sha256.Size]byte // of the tool and its arguments, which the repeated call must have, too
	expiry     *time.Timer       // valid when done is closed
	cancel     context.CancelFunc
	news       chan struct{} // there is a question
	done       chan struct{} // closed when the run has ended, with these:
	out        *sdk.CallToolResult
	res        any
	err        error

	mu      sync.Mutex
	waits   bool           // a call waits for it
	pending *roundQuestion // an open question without an answer
}

type roundQuestion struct {
	form   func() *sdk.ElicitParams
	state  string
	answer chan unitask.Verdict // accepts one
}

// inRounds reports whether the client of a call is asked at the call's end.
func inRounds(caller unitask.Caller, req *sdk.CallToolRequest) bool {
	return req.ProtocolVersion() >= stateless && canAsk(caller, req)
}

type runWith func(ctx context.Context, ask asker) (*sdk.CallToolResult, any, error)

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
		r = s.rounds.begin(ctx, caller.Name, callOf(req), run)
	}
	for {
		if q := r.question(); q != nil {
			return &sdk.CallToolResult{RequestState: q.state,
				InputRequests: sdk.InputRequestMap{roundInput: q.form()}}, nil, nil
		}
		select {
		case <-r.news:
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
	r := &round{id: rand.Text(), caller: caller, call: call, cancel: cancel, waits: true,
		news: make(chan struct{}, 1), done: make(chan struct{})}
	all.mu.Lock()
	if all.open == nil {
		all.open = map[string]*round{}
	}
	all.open[r.id] = r
	all.mu.Unlock()
	go func() {
		defer cancel()
		r.out, r.res, r.err = run(live, r.ask)
		r.expiry = time.AfterFunc(roundKept, func() { all.drop(r) })
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
	r.expiry.Stop()
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.open, r.id)
}

// question returns the open question, with which the waiting call ends.
func (r *round) question() *roundQuestion {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil {
		r.waits = false
	}
	return r.pending
}

// ask asks the client at the end of the waiting call, or of the next one, as long as the question is open.
func (r *round) ask(ctx context.Context, form func() *sdk.ElicitParams) unitask.Verdict {
	asked := &roundQuestion{form, r.id + "." + rand.Text(), make(chan unitask.Verdict, 1)}
	r.mu.Lock()
	r.pending = asked
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
	if r.pending == asked { // another question may be open by now
		r.pending = nil
	}
	return ""
}

// answer answers the question of a state, if the question is still open. No answer counts, too: unitask approve
// may give another.
func (r *round) answer(state string, said unitask.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil && r.pending.state == state {
		r.pending.answer <- said
		r.pending = nil
	}
}

// elicitation returns the form that a client shows its user.
func elicitation(q unitask.Question) *sdk.ElicitParams {
	return &sdk.ElicitParams{Mode: "form", RequestedSchema: approvalForm,
		Message: fmt.Sprintf("The code of run %s wants %s. Its machine stands still for %s at most.", q.RunID, q.Wants(),
			time.Until(q.Until).Round(time.Second))}
}
