// Package session has machines that stay for several steps: it starts, pauses, resumes, forks and ends them.
package session

import (
	"sync"
	"time"

	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/policy"
)

// Manager starts sessions, goes on with paused ones, and bounds how many live at once. Any number of goroutines may use
// one.
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

// Close ends the sessions and returns when they are gone. Paused ones stay on the disk, and Revive resumes them. No
// more start.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	for s := range m.sessions {
		s.cancel(engine.ErrLeft)
	}
	m.mu.Unlock()
	m.uses.Wait()
}
