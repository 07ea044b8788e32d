package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/policy"
)

// Another API at the server's address (API) uses these parts of this server: the queue, the callers' limits and the
// sessions. It also hides the same things from callers over HTTP.

// Admit counts something that a caller starts through another API against the caller's rate. The error is a
// *unitask.BusyError.
func (s *Server) Admit(caller unitask.Caller) error {
	return busy(s.admitted(caller, s.queue.count(caller.Name)))
}

// Enter waits for a caller's turn to run something, as run_code does; leave ends the turn. The error is a
// *unitask.BusyError if too many wait, or ctx's.
func (s *Server) Enter(ctx context.Context, caller unitask.Caller) (leave func(), err error) {
	leave, err = s.queue.enter(ctx, caller.Name, func(int) {})
	return leave, busy(s.admitted(caller, err))
}

// Look begins a listing or a reading of records, which have limits of their own; leave ends it.
func (s *Server) Look(ctx context.Context, caller unitask.Caller) (leave func(), err error) {
	leave, err = s.look(ctx, caller)
	return leave, busy(err)
}

// Begin counts something in progress, for which a closing server waits, until done. The error is unitask.ErrClosed.
func (s *Server) Begin() (done func(), err error) { return s.begin() }

// Context ends when the server closes.
func (s *Server) Context() context.Context { return s.ctx }

// Answer waits for the memory of an answer of that many bytes, which is its caller's until release is called. The error
// is a *unitask.BusyError, or ctx's.
func (s *Server) Answer(ctx context.Context, caller unitask.Caller, bytes int) (release func(), err error) {
	l := &lease{budget: s.budget, caller: caller.Name}
	if err := l.draw(ctx, int64(bytes)/answerCost, answerPatience); err != nil {
		return nil, busy(err)
	}
	return l.close, nil
}

// busy returns a limit's error as a *unitask.BusyError, and any other unchanged.
func busy(err error) error {
	if full := new(LimitError); errors.As(err, &full) {
		return &unitask.BusyError{What: full.Text, After: cmp.Or(full.After, time.Second)}
	}
	return err
}

// Request returns the request that the JSON arguments of run_code describe, for a caller. Its secrets have no values
// yet (Secrets). For a session, code may be missing, and the relative paths of files begin at /work.
func (s *Server) Request(caller unitask.Caller, arguments json.RawMessage, session bool) (unitask.Request, error) {
	var in runArgs
	if err := json.Unmarshal(arguments, &in); err != nil {
		return unitask.Request{}, policy.Bad("body", "", "%v", err)
	}
	language := in.Language
	none := session && in.Code == ""
	if none { // a session's machine runs no code of its own
		in.Code, in.Language = "0", cmp.Or(in.Language, "js")
	}
	if session {
		in.Session = newSession
	}
	req, err := s.request(caller, in)
	if none {
		req.Code, req.Language = "", language
	}
	if err != nil && !errors.As(err, new(*policy.FieldError)) {
		err = policy.Bad("body", "", "%v", err)
	}
	return req, err
}

// Secrets gives a request's secrets their values, as far as the ceiling of a caller allows. ctx is that of the caller's
// HTTP request.
func (s *Server) Secrets(ctx context.Context, caller unitask.Caller, req *unitask.Request) error {
	return s.readSecrets(ctx, caller, namesOf(auth.TokenInfoFromContext(ctx)), req)
}

// Hide returns an error without what a caller must not learn of this host.
func (s *Server) Hide(caller unitask.Caller, err error) error { return s.tell(caller, err) }

// HideResult removes from a result what a caller must not learn of this host. Its texts name the fields of requests in
// place of the command line's flags.
func (s *Server) HideResult(caller unitask.Caller, res *unitask.Result) {
	withoutFlags(res)
	if remote(caller) {
		s.hider.result(res)
	}
}

// Inspection returns the record of a run that a caller may see, without what it must not learn of this host. The error
// is record.ErrNotFound for any other run.
func (s *Server) Inspection(ctx context.Context, caller unitask.Caller, id string) (*history.Inspection, error) {
	full, err := s.find(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	return s.inspection(ctx, caller, full)
}

// NewSession starts a session for a caller and holds it until it ends. When the server closes, a paused one stays on
// the disk.
func (s *Server) NewSession(ctx context.Context, caller unitask.Caller, req unitask.SessionRequest) (*unitask.Session,
	error) {
	made, err := s.rt.NewSessionFor(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	return s.keep(made, caller).Session, nil
}

// Keep holds a session, as a fork, for a caller until it ends.
func (s *Server) Keep(made *unitask.Session, caller unitask.Caller) { s.keep(made, caller) }

// Session returns a caller's session, and resumes one that an earlier server left paused. ctx is that of the caller's
// HTTP request. TypedError has a code for a session that does not exist, or is another caller's: session.gone.
func (s *Server) Session(ctx context.Context, caller unitask.Caller, id string) (*unitask.Session, error) {
	of, err := s.reach(ctx, caller, namesOf(auth.TokenInfoFromContext(ctx)), id)
	if err != nil {
		return nil, err
	}
	return of.Session, nil
}

// EndSession ends a caller's session, whether it is held here or was left paused. The error is that of Session.
func (s *Server) EndSession(caller unitask.Caller, id string) error { return s.end(caller, id) }

// Sessions lists a caller's sessions in the order of their starts, also those that an earlier server left paused.
func (s *Server) Sessions(caller unitask.Caller) []SessionView { return s.sessionsOf(caller).Sessions }

// TypedError returns an error of a call in the form for programs.
func TypedError(err error) *ToolError { return typed(err) }
