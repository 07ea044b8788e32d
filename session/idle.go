package session

import (
	"context"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/machine"
)

// An unused, idle session is paused. unitask judges its activity from outside: by the processor time of its machine,
// and the frames on its network.

// idleFloor is the divisor for the share of a processor that an idle machine may use. Under TCG an idle machine
// uses a twentieth.
const idleFloor = 8

// idleTick returns the interval between checks of a session.
func idleTick(limit time.Duration) time.Duration {
	return min(max(limit/4, 250*time.Millisecond), 15*time.Second)
}

// work is a session's activity since its beginning.
type work struct {
	known     bool // the figures could be read
	busy      bool // a caller's call is in progress
	calls     uint64
	processor time.Duration
	frames    uint64
}

// idleness decides whether a session has been idle for limit.
type idleness struct {
	limit time.Duration
	since time.Time // start of the idle time
	at    time.Time // time of last
	last  work
}

// over receives a session's work so far, and reports whether to pause the session. It reports true again after
// another idle time of the same length.
func (i *idleness) over(now time.Time, w work) bool {
	span := now.Sub(i.at)
	still := !i.at.IsZero() && w.known && !w.busy && w.calls == i.last.calls && w.frames == i.last.frames &&
		(w.processor-i.last.processor)*idleFloor <= span
	i.at, i.last = now, w
	if !still {
		i.since = now
		return false
	}
	if now.Sub(i.since) < i.limit {
		return false
	}
	i.since = now
	return true
}

// usage counts the uses of a session. mu guards all of it.
type usage struct {
	mu    sync.Mutex
	uses  int    // in progress
	calls uint64 // calls so far
}

// begin counts a use until done is called; call means that a caller caused the use.
func (u *usage) begin(call bool) (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.uses++
	if call {
		u.calls++
	}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.uses--
	}
}

// now returns the number of current uses, and the number of calls so far.
func (u *usage) now() (uses int, calls uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.uses, u.calls
}

// work returns what the session has done on a machine.
func (s *Session) work(m *machine.Machine) (w work) {
	w.processor, w.frames, w.known = m.Work()
	uses, calls := s.usage.now()
	w.busy, w.calls = uses > 0, calls
	return w
}

// pauseIfIdle pauses the idle machine, unless that is impossible or somebody is about to need it.
func (s *Session) pauseIfIdle(ctx context.Context, x *engine.Execution, folder string) bool {
	if s.exposed > 0 || !machine.CanClone {
		return false
	}
	files := s.packFiles(ctx)
	if files != nil {
		defer files.Close()
	}
	select {
	case s.changing <- struct{}{}:
		defer func() { <-s.changing }()
	default:
		return false
	}
	uses, calls := s.usage.now()
	if uses > 0 {
		return false
	}
	give, err := s.manager.pausedRoom(s)
	if err != nil {
		return false
	}
	if err := s.sleep(ctx, x, folder); err != nil {
		give()
		return false
	}
	s.state = sessionPaused
	s.keepFiles(files, calls)
	s.manager.settle(s, folder)
	return true
}
