package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// A question about a session stops the time limits of all its steps, and of steps that start during the question.
func TestStepClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c stepClocks
		first, stop := c.start(t.Context(), 10*time.Second)
		defer stop()
		testwait.Pass(4 * time.Second)
		c.Stop()
		second, stop2 := c.start(t.Context(), 2*time.Second)
		defer stop2()
		testwait.Pass(time.Hour)
		synctest.Wait()
		attack.Check(
			t,
			"limits while somebody is asked",
			"<nil> <nil> true",
			fmt.Sprint(first.Err(), " ", second.Err(), " ", c.still()),
		)
		c.Resume()
		testwait.Pass(3 * time.Second)
		synctest.Wait()
		attack.Check(t, "limits behind it", "<nil> true false",
			fmt.Sprint(first.Err(), " ", errors.Is(context.Cause(second), stopclock.ErrTimeout), " ", c.still()))
		testwait.Pass(4 * time.Second)
		synctest.Wait()
		if !errors.Is(context.Cause(first), stopclock.ErrTimeout) {
			t.Error("it never ends")
		}
		_, stop3 := c.start(t.Context(), time.Second)
		stop3()
		if len(c.open) != 2 {
			t.Errorf("%d clocks", len(c.open))
		}
	})
}

// The caller that waits for the newest step is asked; without one, nobody is.
func TestSessionApprover(t *testing.T) {
	s := newSession(nil, run.Caller{}, policy.SessionLimits{})
	says := func(v run.Verdict) run.Approver { return func(context.Context, run.Question) run.Verdict { return v } }
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	who := func() string {
		return cmp.Or(string(s.askers.ask(gone, run.Question{})), "nobody")
	}
	one := s.askers.add(says("one"))
	none := s.askers.add(nil)
	two := s.askers.add(says("two"))
	got := []string{who()}
	two()
	got = append(got, who())
	none()
	one()
	attack.Check(t, "who is asked", "[two one nobody]", fmt.Sprint(append(got, who())))
	_, done, err := s.standing(t.Context())
	if uses, _ := s.usage.now(); err != nil || uses != 1 {
		t.Fatal(err, uses)
	}
	done()
	s.changing <- struct{}{} // it is being paused
	_, _, err = s.standing(gone)
	if uses, _ := s.usage.now(); err == nil || uses != 0 {
		t.Error(err, uses)
	}
}

// If nobody can answer, the first caller that comes while the question is open is asked.
func TestSessionApproverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(nil, run.Caller{}, policy.SessionLimits{})
		said := make(chan run.Verdict, 2)
		for range cap(said) {
			go func() { said <- s.askers.ask(t.Context(), run.Question{}) }()
		}
		synctest.Wait()
		defer s.AnswerBy(func(context.Context, run.Question) run.Verdict { return run.AllowOnce })()
		for range cap(said) {
			if got := <-said; got != run.AllowOnce {
				t.Errorf("got %q, want %q", got, run.AllowOnce)
			}
		}
	})
}
