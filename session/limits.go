package session

import (
	"fmt"
	"time"

	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// usualSessions returns the default limits for the host's memory, in bytes. Half of it may hold sessions' machines of
// the default size, and a caller may have half of those. Paused sessions may take as much as all of it.
func usualSessions(memory, _ int64) policy.SessionLimits {
	n := int(min(max(memory/2/(policy.DefaultMemoryMB<<20), 2), mostUsualSessions))
	return policy.SessionLimits{
		Sessions:       n,
		CallerSessions: max((n+1)/2, 2),
		PausedBytes:    min(max(memory, minPaused), maxPaused),
	}
}

const (
	mostUsualSessions = 64
	minPaused         = 1 << 30
	maxPaused         = 64 << 30
)

// The time to wait before a new attempt when sessions take all the room: somebody has to end one.
const afterSession = time.Minute

// hold notes that a session lives until leave, or says that there is no room for it, or that the
// runtime is closed.
func (m *Manager) hold(s *Session) (leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, engine.ErrClosed
	}
	own, owner := 0, run.Caller{Name: s.holder().Name}.WithDefaults().Name
	for other := range m.sessions {
		if other.holder().WithDefaults().Name == owner {
			own++
		}
	}
	switch {
	case s.limits.Sessions < 0 || s.limits.CallerSessions < 0:
		return nil, policy.Bad("sessions", "1", "the ceiling allows none")
	case own >= s.limits.CallerSessions:
		return nil, &run.BusyError{
			What:  fmt.Sprintf("you have %d sessions, which is the most: end one", own),
			After: afterSession,
		}
	case len(m.sessions) >= s.limits.Sessions:
		return nil, &run.BusyError{
			What:  fmt.Sprintf("%d sessions live here, which is the most", len(m.sessions)),
			After: afterSession,
		}
	}
	if m.sessions == nil {
		m.sessions = map[*Session]int64{}
	}
	m.sessions[s] = 0
	m.uses.Add(1) // Close waits for what comes behind its run: the records of its commands
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.sessions, s)
		m.uses.Done()
	}, nil
}

// pausedRoom takes room for a session's machine on the disk, all the memory that it was given; give
// it back if it is not paused after all.
func (m *Manager) pausedRoom(s *Session) (give func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	size, all := int64(s.Policy.Effective.MemoryMB)<<20, int64(0)
	for _, n := range m.sessions {
		all += n
	}
	all += m.elsewhere()
	switch most := s.limits.PausedBytes; {
	case most < size:
		return nil, policy.Bad(
			"pausedBytes",
			fmt.Sprint(size),
			"at most %d are allowed: the session goes on",
			max(most, 0),
		)
	case all > most-size:
		return nil, &run.BusyError{
			What:  fmt.Sprintf("paused sessions hold %d bytes, and %d are allowed: end one", all, most),
			After: afterSession,
		}
	}
	if _, lives := m.sessions[s]; lives {
		m.sessions[s] = size
	}
	return func() { m.resumed(s) }, nil
}

// resumed gives back what a paused session counted as.
func (m *Manager) resumed(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, lives := m.sessions[s]; lives {
		m.sessions[s] = 0
	}
}
