package vmm

import "time"

// counted is a simultaneous reading of the time stamp counter and the clock.
type counted struct {
	ticks uint64
	spent uint64 // ticks during the reading, which includes the clock's
	at    time.Duration
}

// Bounds on plausible readings of a counter.
const (
	tscWindow    = 10 * time.Millisecond // between two readings: the clocks' jitter of some 100 ns is 10 ppm of it
	tscTries     = 8                     // attempts at three readings
	tscReads     = 64                    // repetitions of one reading, so that one is not interrupted by the host
	tscTolerance = 1000                  // two windows may differ by one part in this number
	minTSCKHz    = 100_000               // 100 MHz: a slower counter does not count time
	maxTSCKHz    = 20_000_000
)

// steadyKHz returns the frequency of a counter from three readings. It returns 0 if they disagree: the counter changes
// its pace, or the process was interrupted.
func steadyKHz(looks [3]counted) int {
	khz := func(a, b counted) float64 {
		took := (b.at - a.at).Seconds()
		if took <= 0 || b.ticks <= a.ticks {
			return 0
		}
		if slack := float64(max(a.spent, b.spent)); slack > float64(b.ticks-a.ticks)/tscTolerance {
			return 0
		}
		return float64(b.ticks-a.ticks) / took / 1000
	}
	first, second, all := khz(looks[0], looks[1]), khz(looks[1], looks[2]), khz(looks[0], looks[2])
	if d := first - second; first == 0 || second == 0 || max(d, -d) > all/tscTolerance || all < minTSCKHz ||
		all > maxTSCKHz {
		return 0
	}
	return int(all)
}

// paced reports whether a processor's counter runs at a constant pace. The processor reports an invariant counter, or
// that it is a virtual machine's, whose hypervisor often hides this. An old processor's counter follows its clock.
func paced(invariant, hypervisor bool) bool { return invariant || hypervisor }
