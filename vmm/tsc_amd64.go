package vmm

import "time"

func rdtsc() uint64

func cpuid(leaf uint32) (eax, ebx, ecx, edx uint32)

// HostTSCKHz measures the frequency of this host's time stamp counter, or returns 0 if the frequency is not constant.
// Under TCG, the guest's counter is the host's.
func HostTSCKHz() int {
	if !paced(invariantTSC()) {
		return 0
	}
	start := time.Now()
	for range tscTries {
		var looks [3]counted
		for i := range looks {
			if i > 0 {
				time.Sleep(tscWindow)
			}
			looks[i] = look(start)
		}
		if khz := steadyKHz(looks); khz > 0 {
			return khz
		}
	}
	return 0
}

// look reads the counter and the clock, and returns the fastest of several readings.
func look(start time.Time) (best counted) {
	for n := range tscReads {
		before := rdtsc()
		at := time.Since(start)
		ticks := rdtsc()
		if spent := ticks - before; n == 0 || spent < best.spent {
			best = counted{ticks, spent, at}
		}
	}
	return best
}

// invariantTSC returns the processor's own description (Intel's SDM, volume 3, 18.17.4; the hypervisor's bit is a
// common convention).
func invariantTSC() (invariant, hypervisor bool) {
	const extended, power = 0x8000_0000, 0x8000_0007
	_, _, ecx, _ := cpuid(1)
	if most, _, _, _ := cpuid(extended); most >= power {
		_, _, _, edx := cpuid(power)
		invariant = edx&(1<<8) != 0
	}
	return invariant, ecx&(1<<31) != 0
}
