package vmm

import (
	"runtime"
	"testing"
	"time"
)

func TestSteadyKHz(t *testing.T) {
	const ms = time.Millisecond
	look := func(ticks uint64, at time.Duration) counted { return counted{ticks, 100, at} }
	for name, c := range map[string]struct {
		looks [3]counted
		want  int
	}{
		"2.5 GHz": {[3]counted{look(1000, 0), look(25_001_000, 10*ms), look(50_001_000, 20*ms)},
			2_500_000},
		"windows of another length": {[3]counted{look(0, 0), look(25_000_000, 10*ms), look(125_000_000, 50*ms)},
			2_500_000},
		"a jitter of 100 ns": {[3]counted{look(0, 0), look(25_000_000, 10*ms+100), look(50_000_000, 20*ms-100)},
			2_500_012},
		"another pace": {[3]counted{look(0, 0), look(25_000_000, 10*ms), look(45_000_000, 20*ms)}, 0},
		"interrupted at a look": {[3]counted{look(0, 0), {35_000_000, 10_000_000, 10 * ms}, look(50_000_000, 20*ms)},
			0},
		"interrupted at the first look": {[3]counted{{0, 12_500_000, 5 * ms}, look(25_000_000, 10*ms),
			look(50_000_000, 20*ms)}, 0},
		"it stands still":                {[3]counted{look(5, 0), look(5, 10*ms), look(5, 20*ms)}, 0},
		"it goes back":                   {[3]counted{look(50_000_000, 0), look(25_000_000, 10*ms), look(0, 20*ms)}, 0},
		"it was set back in between":     {[3]counted{look(1000, 0), look(25_001_000, 10*ms), look(1001, 20*ms)}, 0},
		"the clock stands still":         {[3]counted{look(0, ms), look(25_000_000, ms), look(50_000_000, ms)}, 0},
		"it counts how often it is read": {[3]counted{{1, 1, 0}, {3, 1, 10 * ms}, {5, 1, 20 * ms}}, 0},
		"too slow to be one":             {[3]counted{look(0, 0), look(240_000, 10*ms), look(480_000, 20*ms)}, 0},
		"too fast to be one":             {[3]counted{look(0, 0), look(1<<40, 10*ms), look(2<<40, 20*ms)}, 0},
	} {
		if got := steadyKHz(c.looks); got != c.want {
			t.Errorf("%s: %d kHz, want %d", name, got, c.want)
		}
	}
	for _, c := range []struct{ invariant, hypervisor, want bool }{{true, false, true}, {true, true, true},
		{false, true, true}, {false, false, false}} {
		if paced(c.invariant, c.hypervisor) != c.want {
			t.Errorf("%+v", c)
		}
	}
}

// Two measurements of a host agree, or say that there is nothing to measure.
func TestHostTSC(t *testing.T) {
	a, b := HostTSCKHz(), HostTSCKHz()
	if runtime.GOARCH != "amd64" && a != 0 {
		t.Errorf("%d kHz on %s", a, runtime.GOARCH)
	}
	if a == 0 || b == 0 {
		t.Skip("this host's counter has no one frequency, or it is too busy to tell")
	}
	if d := a - b; max(d, -d) > a/500 {
		t.Errorf("%d and %d kHz", a, b)
	}
}
