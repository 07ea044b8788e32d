package session

import (
	"fmt"
	"time"

	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/machine"
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

// Limits returns the limits of sessions under a ceiling on this host.
func Limits(c *policy.Ceiling) policy.SessionLimits {
	most, _, err := c.Sessions(policy.SessionLimits{}, usualSessions(machine.HostMemory()))
	if err != nil {
		return policy.SessionLimits{}
	}
	return most
}

const (
	mostUsualSessions = 64       // sessions without a ceiling, however much memory there is
	minPaused         = 1 << 30  // bytes of paused machines, on a host with little memory
	maxPaused         = 64 << 30 // and on a host with much
)

// The time to wait before a new attempt when sessions use all the room: somebody has to end one.
const afterSession = time.Minute

// hold counts a session until leave. It returns an error if there is no room for the session, or the runtime is
// closed.
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
	m.uses.Add(1) // Close also waits for the records of the session's commands
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.sessions, s)
		m.uses.Done()
	}, nil
}

// pausedRoom reserves room on the disk for a session's machine: all of its memory, until it is paused (settle). Call
// give if the session is not paused after all.
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
			"at most %d are allowed: the session continues",
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

// settle releases the room that a pause in a folder does not take: pages of zeros take none.
func (m *Manager) settle(s *Session, folder string) {
	bytes, err := machine.PauseBytes(folder)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, lives := m.sessions[s]; lives && err == nil {
		m.sessions[s] = bytes
	}
}

// resumed releases the room of a paused session.
func (m *Manager) resumed(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, lives := m.sessions[s]; lives {
		m.sessions[s] = 0
	}
}
