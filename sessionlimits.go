package unitask

import (
	"fmt"
	"time"

	"github.com/unitask/unitask/policy"
)

// usualSessions returns the default limits for the host's memory, in bytes. Half of it may hold sessions' machines of
// the default size, and a caller may have half of those. Paused sessions may take as much as all of it.
func usualSessions(memory, _ int64) policy.SessionLimits {
	n := int(min(max(memory/2/(policy.DefaultMemoryMB<<20), 2), mostUsualSessions))
	return policy.SessionLimits{Sessions: n, CallerSessions: max((n+1)/2, 2), PausedBytes: min(max(memory, minPaused), maxPaused)}
}

const (
	mostUsualSessions = 64
	minPaused         = 1 << 30
	maxPaused         = 64 << 30
)

// The time to wait before a new attempt when sessions take all the room: somebody has to end one.
const afterSession = time.Minute

// hold counts a session as live until leave. It returns an error if there is no room for the session, or the runtime is
// closed.
func (rt *Runtime) hold(s *Session) (leave func(), err error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return nil, ErrClosed
	}
	own, owner := 0, Caller{Name: s.caller.Name}.WithDefaults().Name
	for other := range rt.sessions {
		if other.caller.WithDefaults().Name == owner {
			own++
		}
	}
	switch {
	case s.limits.Sessions < 0 || s.limits.CallerSessions < 0:
		return nil, policy.Bad("sessions", "1", "the ceiling allows none")
	case own >= s.limits.CallerSessions:
		return nil, &BusyError{What: fmt.Sprintf("you have %d sessions, which is the most: end one", own), After: afterSession}
	case len(rt.sessions) >= s.limits.Sessions:
		return nil, &BusyError{What: fmt.Sprintf("%d sessions live here, which is the most", len(rt.sessions)), After: afterSession}
	}
	if rt.sessions == nil {
		rt.sessions = map[*Session]int64{}
	}
	rt.sessions[s] = 0
	rt.uses.Add(1) // Close waits for the records of its commands, which end after its run
	return func() {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		delete(rt.sessions, s)
		rt.uses.Done()
	}, nil
}

// pausedRoom reserves room for a session's machine on the disk, for all the memory that it was given. Give the room
// back if the session is not paused after all.
func (rt *Runtime) pausedRoom(s *Session) (give func(), err error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	size, all := int64(s.Policy.Effective.MemoryMB)<<20, int64(0)
	for _, n := range rt.sessions {
		all += n
	}
	all += rt.elsewhere()
	switch most := s.limits.PausedBytes; {
	case most < size:
		return nil, policy.Bad("pausedBytes", fmt.Sprint(size), "at most %d are allowed: the session goes on", max(most, 0))
	case all > most-size:
		return nil, &BusyError{What: fmt.Sprintf("paused sessions hold %d bytes, and %d are allowed: end one", all, most), After: afterSession}
	}
	if _, lives := rt.sessions[s]; lives {
		rt.sessions[s] = size
	}
	return func() { rt.resumed(s) }, nil
}

// resumed frees the room of a session that was paused.
func (rt *Runtime) resumed(s *Session) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if _, lives := rt.sessions[s]; lives {
		rt.sessions[s] = 0
	}
}
