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

// Expires returns when the session ends, by its Life or by Extend.
func (s *Session) Expires() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expires
}

// Began returns when the session's machine began; for a fork, when it was forked.
func (s *Session) Began() time.Time {
	began, _ := s.age()
	return paused.BegunAt(s.ID, began)
}

// age returns when the session began, and when it ends.
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
	if s.expires.IsZero() { // otherwise it continues another session
		s.began, s.expires = begin, begin.Add(s.limits.Life)
	}
	s.life = time.AfterFunc(time.Until(s.expires), func() { end(stopclock.ErrTimeout) })
	return timed, func() {
		s.life.Stop()
		end(nil)
	}
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

// outlives sets the session's end, unless it has already come.
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

// lived returns how long the session lives, from beginning to end.
func (s *Session) lived() time.Duration {
	began, expires := s.age()
	return expires.Sub(began).Round(time.Second)
}
