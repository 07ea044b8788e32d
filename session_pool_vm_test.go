package unitask_test

import (
	"testing"

	"github.com/unitask/unitask"
)

// After a first session the pool has a machine for the next one, which is as any other: it has its own random numbers
// and clock, and can be paused and forked.
func TestSessionFromPool(t *testing.T) {
	needClones(t)
	rt := openPool(t, newHome(t), unitask.PoolSize{Max: 2}, unitask.MachineClass{})
	open := func() *unitask.Session {
		t.Helper()
		s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	const random = "import os, random; os.urandom(8).hex() + str(random.random())"
	first := open()
	seen := map[string]bool{value(t, first, "python", random): true}
	for range 2 {
		before := rt.Pool().Served
		poolHas(t, rt, "it has no machine for a session", func(st unitask.PoolStats) bool {
			return st.Idle >= 1 && st.Making == 0
		})
		s := open()
		if served := rt.Pool().Served; served != before+1 {
			t.Errorf("%d of %d sessions are from the pool", served-before, 1)
		}
		seen[value(t, s, "python", random)] = true
		value(t, s, "python", "held = bytearray(5 << 20); held[7] = 7")
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		forks, err := s.Fork(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(forks, s) {
			if got := value(t, f, "python", "len(held) + held[7]"); got != "5242887" {
				t.Errorf("%s", got)
			}
			seen[value(t, f, "python", random)] = true
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if len(seen) != 9 {
		t.Errorf("%d different random numbers, not 9: %v", len(seen), seen)
	}
}
