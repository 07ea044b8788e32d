// Package session runs machines that stay for several steps: it starts, pauses, resumes, forks and ends them.
package session

import (
	"sync"
	"time"

	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/policy"
)

// Manager starts sessions, resumes paused ones, and bounds how many live at once. Any number of goroutines may
// use it.
type Manager struct {
	Engine  *engine.Engine
	Ceiling *policy.Ceiling // of callers without their own
	// Refuse returns why no session may start here.
	Refuse func() error
	// BringTime bounds the transfer of a step's files, in addition to the time for their size; 0 means a minute.
	BringTime time.Duration

	mu       sync.Mutex
	closed   bool
	sessions map[*Session]int64 // open sessions: the disk space of each while it is paused, else 0
	uses     sync.WaitGroup     // of sessions, and of the records of their commands
}

// NewManager returns a manager of an engine's sessions, which also starts the engine's wrapped servers of tools.
func NewManager(e *engine.Engine, ceiling *policy.Ceiling, refuse func() error) *Manager {
	m := &Manager{Engine: e, Ceiling: ceiling, Refuse: refuse}
	e.WrapTools = Starter(m.Start).ToolServer
	return m
}

// Close ends the sessions and returns when they are gone. Paused ones stay on the disk, and Revive resumes them.
// No further session starts.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	for s := range m.sessions {
		s.cancel(engine.ErrLeft)
	}
	m.mu.Unlock()
	m.uses.Wait()
}
