package vmm

import "time"

// counted is a look at the time stamp counter and the clock at once.
type counted struct {
	ticks uint64
	spent uint64 // ticks that the look took: the clock was read within them
	at    time.Duration
}

// Bounds of what is believed of a counter.
const (
	tscWindow    = 10 * time.Millisecond // between two looks: the clocks' jitter of some 100 ns is 10 ppm of it
	tscTries     = 8                     // at three looks
	tscReads     = 64                    // for one look, of which a host that interrupts them leaves one alone
	tscTolerance = 1000                  // two windows may differ by one part in so many
	minTSCKHz    = 100_000               // 100 MHz: below it, it counts something else than time
	maxTSCKHz    = 20_000_000
)

// steadyKHz returns the frequency of a counter by three looks, or 0 where they don't agree on one: it changes its pace,
// or the process was interrupted.
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

// paced reports whether a processor's counter runs at one pace, by what the processor says of itself: that it does, or
// that it is a virtual machine's, whose hypervisor often does not pass this on. An old one's counter goes with its
// clock.
func paced(invariant, hypervisor bool) bool { return invariant || hypervisor }
