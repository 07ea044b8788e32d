package mcp

import (
	"fmt"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// A caller's load is its own, beside that of another caller.
func TestAttackQueueStats(t *testing.T) {
	q := newQueue(3, 9, 0, 0, func(int, int) {})
	leave, err := q.enter(t.Context(), "bob", func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	for caller, running := range map[string]string{"alice": "0", "bob": "1"} {
		attack.Check(t, "the load that "+caller+" sees", running, fmt.Sprint(q.stats(caller, false).Running))
	}
	if got := q.stats("alice", true); got.Running != 1 || got.MostRunning != 3 {
		t.Errorf("all callers: %+v", got)
	}
}
