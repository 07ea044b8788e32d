package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// lease is a session's lifetime. mu guards all of it.
type lease struct {
	mu      sync.Mutex
	began   time.Time // when the session, or the one it was forked from, began
	expires time.Time
	timer   *time.Timer // fires at expires
}

// age returns when the session began, and when it ends.
func (l *lease) age() (began, expires time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began, l.expires
}

// set copies another session's lease.
func (l *lease) set(began, expires time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began, l.expires = began, expires
}

// start returns a context that ends with stopclock.ErrTimeout when the session's life is over. A session that
// continues no other one begins at begin, and lives for life.
func (l *lease) start(ctx context.Context, begin time.Time, life time.Duration) (timed context.Context, cancel func()) {
	timed, end := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expires.IsZero() {
		l.began, l.expires = begin, begin.Add(life)
	}
	timer := time.AfterFunc(time.Until(l.expires), func() { end(stopclock.ErrTimeout) })
	l.timer = timer
	return timed, func() {
		timer.Stop()
		end(nil)
	}
}

// setEnd sets the session's end, unless it has already come.
func (l *lease) setEnd(until time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.timer.Stop() {
		return false
	}
	l.expires = until
	l.timer.Reset(max(0, time.Until(until)))
	return true
}

// length returns how long the session lives, from beginning to end.
func (l *lease) length() time.Duration {
	began, expires := l.age()
	return expires.Sub(began).Round(time.Second)
}

// Expires returns when the session ends, by its Life or by Extend.
func (s *Session) Expires() time.Time {
	_, expires := s.lease.age()
	return expires
}

// Began returns when the session's machine began; for a fork, when it was forked.
func (s *Session) Began() time.Time {
	began, _ := s.lease.age()
	return paused.BegunAt(s.ID, began)
}

// Extend sets how long the session lives from now on, which may end it earlier than before. Counted from its beginning,
// its life has the limit of a new one: the ceiling's sessionLifeSeconds, or a day. Extend resumes a paused session, and
// reads the ceiling's files again.
func (s *Session) Extend(ctx context.Context, life time.Duration) error {
	bad := func(reason string) error {
		return policy.Bad("life", life.String(), "%s", reason)
	}
	if life < time.Second {
		return bad("must be 1s at least")
	}
	if err := s.renewCeiling(); err != nil {
		return err
	}
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	until := time.Now().Add(life)
	most, _, err := s.ceiling().Sessions(policy.SessionLimits{}, usualSessions(machine.HostMemory()))
	if err != nil {
		return err
	}
	began, _ := s.lease.age()
	if last := began.Add(most.Life); until.After(last) {
		return bad(
			fmt.Sprintf(
				"is too long: a session lives for %s at most, and this one until %s",
				most.Life,
				last.UTC().Format(time.RFC3339),
			),
		)
	}
	if s.lease.setEnd(until) {
		return nil
	}
	select {
	case <-s.done:
		return s.gone()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
