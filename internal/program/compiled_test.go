package program

import (
	"testing"
	"time"
)

// A large program has time on its way into a slow guest, and no other run waits longer.
func TestPatienceWithPrograms(t *testing.T) {
	var none *Compilation
	large := &Compilation{Looked: true, Program: make([]byte, 32<<20)}
	if got := large.Patience(); got < 32*time.Second || got > time.Minute {
		t.Errorf("32 MiB: %v", got)
	}
	large.Sent()
	for name, c := range map[string]*Compilation{"none": none, "to be compiled": {Looked: true}, "sent": large} {
		if got := c.Patience(); got != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}
