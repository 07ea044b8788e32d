package unitask

import (
	"fmt"
	"time"

	"github.com/unitask/unitask/policy"
)

// usualSessions are the limits that follow from the host's memory, in bytes: half of it may be
// sessions' machines of the usual size, of which a caller may have half; as much as all of it
// may be paused.
func usualSessions(memory, _ int64) policy.SessionLimits {
	n := int(min(max(memory/2/(policy.DefaultMemoryMB<<20), 2), mostUsualSessions))
	return policy.SessionLimits{Sessions: n, CallerSessions: max((n+1)/2, 2), PausedBytes: min(max(memory, minPaused), maxPaused)}
}

const (
	mostUsualSessions = 64
	minPaused         = 1 << 30
	maxPaused         = 64 << 30
)

// When to ask again where sessions are in the way: somebody has to end one.
const afterSession = time.Minute

// hold notes that a session lives until leave, or says that there is no room for it, or that the
// runtime is closed.
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
	rt.uses.Add(1) // Close waits for what comes behind its run: the records of its commands
	return func() {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		delete(rt.sessions, s)
		rt.uses.Done()
	}, nil
}

// pausedRoom takes room for a session's machine on the disk, all the memory that it was given; give
// it back if it is not paused after all.
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

// resumed gives back what a paused session counted as.
func (rt *Runtime) resumed(s *Session) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if _, lives := rt.sessions[s]; lives {
		rt.sessions[s] = 0
	}
}
