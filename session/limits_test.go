package session

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// However many sessions a caller starts at once, it gets no more than its limit, and others get theirs.
func TestSessionsAtOnce(t *testing.T) {
	rt := &Manager{Engine: &engine.Engine{}}
	one := func(caller string, all, own int) *Session {
		return &Session{authority: authority{caller: run.Caller{Name: caller}},
			limits: policy.SessionLimits{Sessions: all, CallerSessions: own, PausedBytes: 3 << 20}}
	}
	var mu sync.Mutex
	var leaves []func()
	var group sync.WaitGroup
	for _, caller := range []string{"a", "b", "c"} {
		for range 20 {
			group.Go(func() {
				leave, err := rt.hold(one(caller, 8, 4))
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					leaves = append(leaves, leave)
				} else if busy := (*run.BusyError)(nil); !errors.As(err, &busy) || busy.After != afterSession {
					t.Errorf("%v", err)
				}
			})
		}
		group.Wait()
	}
	by := map[string]int{}
	for s := range rt.sessions {
		by[s.caller.Name]++
	}
	closed := make(chan struct{})
	go func() { rt.uses.Wait(); close(closed) }()
	if len(leaves) != 8 || by["a"] != 4 || by["b"] != 4 {
		t.Errorf("%d: %v", len(leaves), by)
	}
	for i, leave := range leaves {
		select {
		case <-closed:
			t.Errorf("a runtime is closed while %d sessions end", len(leaves)-i)
		default:
		}
		leave()
	}
	<-closed
	if len(rt.sessions) != 0 {
		t.Errorf("left: %v", rt.sessions)
	}
	if _, err := rt.hold(one("a", -1, 4)); err == nil || !strings.Contains(err.Error(), "allows none") {
		t.Errorf("none are allowed: %v", err)
	}

	// The memory of paused sessions; each counts with its full grant.
	var list []*Session
	for range 3 {
		s := one("a", 8, 4)
		s.Policy.Effective.MemoryMB = 1
		list = append(list, s)
		if _, err := rt.hold(s); err != nil {
			t.Fatal(err)
		}
	}
	list[2].limits.PausedBytes = 2 << 20
	give, err := rt.pausedRoom(list[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rt.pausedRoom(list[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.pausedRoom(list[2]); !errors.As(err, new(*run.BusyError)) {
		t.Errorf("the third: %v", err)
	}
	give()
	if _, err := rt.pausedRoom(list[2]); err != nil {
		t.Errorf("after the first was resumed: %v", err)
	}
	list[0].limits.PausedBytes = 1<<20 - 1
	if _, err := rt.pausedRoom(list[0]); !errors.As(err, new(*policy.FieldError)) {
		t.Errorf("one that never fits: %v", err)
	}
}

// A host of any size can hold the default limits.
func TestUsualSessions(t *testing.T) {
	for _, row := range []struct {
		memory   int64
		all, own int
		paused   int64
	}{
		{0, 2, 2, 1 << 30},
		{1 << 30, 2, 2, 1 << 30},
		{4 << 30, 4, 2, 4 << 30},
		{16 << 30, 16, 8, 16 << 30},
		{1 << 40, 64, 32, 64 << 30},
		{math.MaxInt64, 64, 32, 64 << 30},
	} {
		got := usualSessions(row.memory, 0)
		if got.Sessions != row.all || got.CallerSessions != row.own || got.PausedBytes != row.paused {
			t.Errorf("%d: %+v", row.memory, got)
		}
		if _, _, err := (*policy.Ceiling)(nil).Sessions(policy.SessionLimits{}, got); err != nil {
			t.Errorf("%d: %v", row.memory, err)
		}
	}
}

// A call to a session that ended because of its age fails at once, and says so.
func TestAfterItsAge(t *testing.T) {
	s := newSession(&Manager{Engine: &engine.Engine{}}, run.Caller{}, policy.SessionLimits{BackgroundCommands: 1})
	began := time.Now().Add(-time.Minute)
	s.lease.set(began, began.Add(time.Minute))
	s.result, s.jobs.over = &run.Result{TimedOut: true}, true
	s.lease.timer = time.NewTimer(time.Hour)
	s.lease.timer.Stop()
	asked := func(what string, do func() error) {
		t.Helper()
		said := make(chan error, 1)
		go func() { said <- do() }()
		select {
		case err := <-said:
			if !errors.As(err, new(*run.SessionError)) || !strings.Contains(err.Error(), "it had lived for 1m0s") {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no answer", what)
		}
	}
	asked("a place for a command, before its machine is gone", func() error { _, err := s.background(); return err })
	ending := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() { close(s.done); close(ending) })
	asked("a longer life, before its machine is gone", func() error { return s.Extend(t.Context(), time.Second) })
	<-ending
	asked("a longer life", func() error { return s.Extend(t.Context(), time.Second) })
	asked("a command", func() error { _, err := s.Start(t.Context(), Command{Args: []string{"true"}}); return err })
	asked("another pause", func() error { _, err := s.use(t.Context()); return err })
}
