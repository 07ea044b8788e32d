package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/unitask/unitask/policy"
)

// A worker's report narrows the numbers of a run's grants, and never widens one.
func TestNarrowedNumbers(t *testing.T) {
	here := policy.Effective{MemoryMB: 512, OutputBytes: 100, Timeout: time.Minute, MaxProcesses: 64}
	for _, c := range []struct {
		name  string
		there policy.Effective
		want  string
	}{
		{"less of each", policy.Effective{MemoryMB: 256, OutputBytes: 10, Timeout: time.Second, MaxProcesses: 8},
			"256 10 1s 8"},
		{"more of each", policy.Effective{MemoryMB: 1024, OutputBytes: 1000, Timeout: time.Hour, MaxProcesses: 2048},
			"512 100 1m0s 64"},
		{"an older worker's", policy.Effective{MemoryMB: 512, OutputBytes: 100, Timeout: time.Minute}, "512 100 1m0s 64"},
		{"negative numbers", policy.Effective{MemoryMB: -1, OutputBytes: -1, Timeout: -1, MaxProcesses: -1},
			"512 100 1m0s 64"},
		{"nothing was granted", policy.Effective{MaxProcesses: 1}, "512 100 1m0s 64"},
	} {
		got := narrowed(here, c.there)
		if s := fmt.Sprint(got.MemoryMB, got.OutputBytes, got.Timeout, got.MaxProcesses); s != c.want {
			t.Errorf("%s: got %s, want %s", c.name, s, c.want)
		}
	}
}
