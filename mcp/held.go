package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/policy"
)

// Sessions of unitask, machines that stay between calls, are not sessions of the protocol. They are held here,
// each for the caller that made it.

// errNoSession is the answer for a session that never existed, has ended, or is another caller's.
var errNoSession = errors.New("there is no such session: it has ended, or never was; session with op list names yours")

// held are the sessions that are open.
type held struct {
	reviving sync.Mutex // held while a paused session is resumed

	mu  sync.Mutex
	all map[string]*heldSession // by id
}

type heldSession struct {
	*unitask.Session
	caller string
}

// add holds a session until it ends.
func (h *held) add(s *unitask.Session, caller string) *heldSession {
	one := &heldSession{s, caller}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[string]*heldSession{}
	}
	h.all[s.ID] = one
	go func() {
		<-s.Done()
		h.drop(s.ID)
	}()
	return one
}

func (h *held) drop(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, id)
}

// find returns a caller's session.
func (h *held) find(id, caller string) (*heldSession, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.all[id]; s != nil && s.caller == caller {
		return s, nil
	}
	return nil, fmt.Errorf("session %.80q: %w", id, errNoSession)
}

// of returns a caller's sessions, in the order of their ids, which is that of their starts.
func (h *held) of(caller string) (list []SessionView) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.all {
		if s.caller == caller {
			list = append(list, s.view())
		}
	}
	slices.SortFunc(list, func(a, b SessionView) int { return strings.Compare(a.Session, b.Session) })
	return list
}

// SessionView is a session in the form for clients.
type SessionView struct {
	Session   string    `json:"session"`
	Parent    string    `json:"parent,omitempty"`
	Language  string    `json:"language"`
	Image     string    `json:"image"`
	Began     time.Time `json:"began"`
	ExpiresAt time.Time `json:"expiresAt"`
	Paused    bool      `json:"paused,omitempty"`
}

func (s *heldSession) view() SessionView {
	return SessionView{s.ID, s.Parent, s.Language, s.Image, s.Began().UTC().Truncate(time.Second),
		s.Expires().UTC().Truncate(time.Second), s.Paused()}
}

// newSession starts a session for a call.
func (s *Server) newSession(ctx context.Context, caller unitask.Caller, run unitask.Request,
	events func(unitask.Event)) (*heldSession, error) {
	run.Code, run.Path, run.Args, run.Dir = "", "", nil, ""
	// The call's time limit applies only to the call: later steps may have what the ceiling grants a run.
	most, _, err := policy.Resolve(policy.Request{Timeout: policy.MaxTimeout}, caller.Ceiling)
	if err != nil {
		return nil, err
	}
	run.Timeout = max(run.Timeout, most.Timeout)
	made, err := s.rt.NewSessionFor(ctx, caller, unitask.SessionRequest{Request: run, Events: events})
	if err != nil {
		return nil, err
	}
	return s.keep(made, caller), nil
}

// keep holds a session for a caller until it ends. When the server closes, a paused session is left to the next
// server; any other ends.
func (s *Server) keep(made *unitask.Session, caller unitask.Caller) *heldSession {
	s.opts.Log.Info("session", "id", made.ID, "parent", made.Parent, "caller", caller.Name, "image", made.Image)
	stop := context.AfterFunc(s.ctx, func() { _ = made.Leave() })
	go func() {
		<-made.Done()
		stop()
	}()
	return s.held.add(made, caller.Name)
}

// reach returns a caller's session, and resumes one that an earlier server has left paused. names are the
// caller's, as in readSecrets.
func (s *Server) reach(ctx context.Context, caller unitask.Caller, names []string, id string) (*heldSession, error) {
	if of, err := s.held.find(id, caller.Name); err == nil {
		return of, nil
	}
	none := fmt.Errorf("session %.80q: %w", id, errNoSession)
	left, err := paused.Find(s.rt.Images().Home(), id)
	if err != nil || !leftFor(caller, left) {
		return s.held.find(id, caller.Name) // which may be resumed meanwhile
	}
	s.held.reviving.Lock()
	defer s.held.reviving.Unlock()
	if of, err := s.held.find(id, caller.Name); err == nil || s.ctx.Err() != nil { // resumed meanwhile
		return of, err
	}
	needs := unitask.Request{Secrets: map[string]string{}}
	for _, name := range left.Secrets {
		needs.Secrets[name] = ""
	}
	if err := s.readSecrets(ctx, caller, names, &needs); err != nil {
		return nil, err
	}
	made, err := s.rt.Revive(ctx, caller, id, needs.Secrets)
	if errors.As(err, new(*unitask.SessionError)) {
		return nil, none
	}
	if err != nil {
		return nil, err
	}
	return s.keep(made, caller), nil
}

// left returns a caller's sessions that no process holds.
func (s *Server) left(caller unitask.Caller) []paused.Session {
	all, err := paused.List(s.rt.Images().Home())
	if err != nil {
		s.opts.Log.Warn("sessions", "error", err)
	}
	return slices.DeleteFunc(all, func(p paused.Session) bool { return !leftFor(caller, p) })
}

// leftFor reports whether a paused session belongs to a caller: made by it, and through MCP, as with runs (sees).
func leftFor(caller unitask.Caller, p paused.Session) bool {
	caller.Name = owner(caller)
	return sees(caller)(p.Owner, p.Via)
}

// owner returns a caller's name in records.
func owner(caller unitask.Caller) string {
	return cmp.Or(caller.Name, unitask.LocalOwner(os.Geteuid()))
}

func (s *Server) sessionsOf(caller unitask.Caller) sessionsResult {
	list := append([]SessionView{}, s.held.of(caller.Name)...)
	for _, p := range s.left(caller) {
		list = append(list, SessionView{p.ID, p.Parent, p.Language, p.Image, p.Began.UTC().Truncate(time.Second),
			p.Expires.UTC().Truncate(time.Second), true})
	}
	slices.SortFunc(list, func(a, b SessionView) int { return strings.Compare(a.Session, b.Session) })
	return sessionsResult{Sessions: list}
}
