package engine

import (
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/run"
)

// A run is repeated only if nothing can have left its machine: no output, and no network at any time.
func TestAttackRetry(t *testing.T) {
	allow := run.PolicyChange{AllowNet: []string{"a.example"}}
	deny := run.PolicyChange{DenyNet: []string{"a.example"}}
	for _, row := range []struct {
		name    string
		changes []run.PolicyChange
		output  string
		want    bool
	}{
		{"nothing has left", nil, "", true},
		{"it has printed", nil, "x", false},
		{"a change opened a host", []run.PolicyChange{allow}, "", false},
		{"a change opened a host, and another denied it", []run.PolicyChange{allow, deny}, "", false},
		{"a change denied a host", []run.PolicyChange{deny}, "", true},
		{"a change opened a host, and it has printed", []run.PolicyChange{allow}, "x", false},
	} {
		live := &egress.LiveRules{}
		for _, c := range row.changes {
			if err := live.Apply(c); err != nil {
				t.Fatal(err)
			}
		}
		a, cut := &attempt{live: live}, false
		if row.output != "" {
			fmt.Fprint(a.writer(io.Discard), row.output)
		}
		again := a.giveUp(func() { cut = true })
		attack.Check(t, "a run repeated on linux: "+row.name, fmt.Sprint(row.want, row.want), fmt.Sprint(again, cut))
	}
}

// A change that comes just before a run is repeated either prevents that, or opens a network that is cut.
func TestAttackRetryAfterChange(t *testing.T) {
	both := 0
	for range 200 {
		if changeWhileGivenUp(t) {
			both++
		}
	}
	attack.Check(t, "runs of 200 that are repeated though they had a network", "0", fmt.Sprint(both))
}

// changeWhileGivenUp reports whether a run is repeated although its first machine was given a network.
func changeWhileGivenUp(t *testing.T) bool {
	live := &egress.LiveRules{}
	a := &attempt{live: live}
	var group sync.WaitGroup
	isCut, opened, again := false, false, false
	group.Go(func() {
		live.Lock()
		defer live.Unlock()
		if err := live.Apply(run.PolicyChange{AllowNet: []string{"a.example"}}); err != nil {
			t.Error(err)
		}
		opened = !isCut // as Asker.change sets the rules of a machine
	})
	group.Go(func() { again = a.giveUp(func() { isCut = true }) })
	group.Wait()
	return again && opened
}

// A change that comes while a session's machine is resumed waits, and then applies to the machine with the network.
func TestAttackChangeWhileResumed(t *testing.T) {
	x := &Execution{engine: &Engine{}, Live: &egress.LiveRules{}}
	got := "free"
	err := x.Resume(func(machine.Config) (*machine.Machine, error) {
		if x.Live.TryLock() {
			x.Live.Unlock()
			return nil, nil
		}
		got = "waits"
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a change of the policy while a session's machine is resumed", "waits", got)
	if !x.Live.TryLock() {
		t.Error("changes wait for ever")
	}
}
