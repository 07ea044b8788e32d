package unitask

import (
	"testing"
	"time"
)

// A large program has time on its way into a slow guest, and no other run waits longer.
func TestPatienceWithPrograms(t *testing.T) {
	var none *compilation
	large := &compilation{looked: true, program: make([]byte, 32<<20)}
	if got := large.patience(); got < 32*time.Second || got > time.Minute {
		t.Errorf("32 MiB: %v", got)
	}
	large.sent()
	for name, c := range map[string]*compilation{"none": none, "to be compiled": {looked: true}, "sent": large} {
		if got := c.patience(); got != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}
