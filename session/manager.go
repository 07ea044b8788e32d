// Package session has machines that stay for several steps: it starts, pauses, resumes, forks and ends them.
package session

import (
	"sync"
	"time"

	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/policy"
)

// Manager starts sessions, goes on with paused ones, and bounds how many live at once. Any number of goroutines may use
// one. Close ends its sessions.
type Manager struct {
	Engine  *engine.Engine
	Ceiling *policy.Ceiling // of callers that have none of their own
	// Refuse says why no session may start here.
	Refuse func() error
	// BringTime is how long the files of a step may take on their way, beside what their size takes; 0 is a minute.
	BringTime time.Duration

	mu       sync.Mutex
	closed   bool
	sessions map[*Session]int64 // that live: what each counts as when it is paused, 0 where it is not
	uses     sync.WaitGroup     // of sessions, and of the records of their commands
}

// Stop ends the sessions, but those that are paused, which Revive goes on with, and has no more start. Wait waits for
// their ends.
func (m *Manager) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for s := range m.sessions {
		s.cancel(errEnds)
	}
}

// Wait waits until no session is left.
func (m *Manager) Wait() { m.uses.Wait() }
