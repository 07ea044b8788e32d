package session

import (
	"context"
	"fmt"
	"time"

	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// Expires is when the session ends, by its Life or as Extend has it.
func (s *Session) Expires() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expires
}

// Began is when it was made, which is when its machine began; of a fork, when it was forked.
func (s *Session) Began() time.Time {
	began, _ := s.age()
	return paused.BegunAt(s.ID, began)
}

// age is when it began, and when it ends.
func (s *Session) age() (began, expires time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began, s.expires
}

// lives returns a context that ends, for errTimeout, when the session's life is over.
func (s *Session) lives(ctx context.Context, begin time.Time) (timed context.Context, cancel func()) {
	timed, end := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expires.IsZero() { // else it goes on from another one
		s.began, s.expires = begin, begin.Add(s.limits.Life)
	}
	s.life = time.AfterFunc(time.Until(s.expires), func() { end(stopclock.ErrTimeout) })
	return timed, func() {
		s.life.Stop()
		end(nil)
	}
}

// Extend has the session live for that long from now on, which may be shorter than it would have. From its beginning
// to its end it lives no longer than a new one might: the ceiling's sessionLifeSeconds, a day where there is none. A
// session that is paused is resumed for it. The ceiling's files are read again.
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
	began, _ := s.age()
	if last := began.Add(most.Life); until.After(last) {
		return bad(fmt.Sprintf("is too long: a session lives for %s at most, and this one until %s", most.Life, last.UTC().Format(time.RFC3339)))
	}
	if s.outlives(until, life) {
		return nil
	}
	select {
	case <-s.done:
		return s.gone()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// outlives sets the time of its end, unless that has come.
func (s *Session) outlives(until time.Time, life time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.life.Stop() {
		return false
	}
	s.expires = until
	s.life.Reset(life)
	return true
}

// lived is how long it lives, from its beginning to its end.
func (s *Session) lived() time.Duration {
	began, expires := s.age()
	return expires.Sub(began).Round(time.Second)
}
