package mcp

import (
	"fmt"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// A session that starts while another session's limits are checked also counts.
func TestAttackSessionsRace(t *testing.T) {
	var v visitors
	none := func() map[string]bool { return nil }
	began, err := v.newSession("a", none)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.newSession("a", func() map[string]bool {
		if v.mu.TryLock() { // the first could become a session between the list and its use
			v.mu.Unlock()
			began("S1")
			began = func(string) {}
		}
		return nil // as it was before
	}); err != nil {
		t.Fatal(err)
	}
	began("S1")
	attack.Check(t, "the session that began meanwhile", "a", v.sessions["S1"])
	// So it stays within the limit.
	live := map[string]bool{"S1": true}
	refused := 0
	for range maxCallerSessions {
		if _, err := v.newSession("a", func() map[string]bool { return live }); err != nil {
			refused++
		}
	}
	attack.Check(t, "sessions beyond a caller's bound", "2 refused", fmt.Sprint(refused, " refused"))
}
