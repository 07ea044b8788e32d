package mcp

import (
	"context"
	"sync"
)

// sessions are the current calls in older clients' sessions.
type sessions struct {
	mu    sync.Mutex
	calls map[string]map[*sessionCall]bool // by the session's id
}

type sessionCall struct {
	caller string
	cancel context.CancelFunc
}

// add registers a call until done is called.
func (s *sessions) add(session, caller string, cancel context.CancelFunc) (done func()) {
	c := &sessionCall{caller, cancel}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]map[*sessionCall]bool{}
	}
	if s.calls[session] == nil {
		s.calls[session] = map[*sessionCall]bool{}
	}
	s.calls[session][c] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.calls[session], c); len(s.calls[session]) == 0 {
			delete(s.calls, session)
		}
	}
}

// end cancels the calls of a caller's session.
func (s *sessions) end(session, caller string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls[session] {
		if c.caller == caller {
			c.cancel()
		}
	}
}
