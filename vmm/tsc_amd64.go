package vmm

import "time"

func rdtsc() uint64

// tscWindow is how long the TSC is watched: at 10 ms the two clocks' reading
// jitter of some 100 ns is 10 ppm.
const tscWindow = 10 * time.Millisecond

// HostTSCKHz measures the frequency of this host's time stamp counter, or 0
// where there is none. Under TCG the guest's counter is the host's.
func HostTSCKHz() int {
	t0, c0 := time.Now(), rdtsc()
	time.Sleep(tscWindow)
	t1, c1 := time.Now(), rdtsc()
	return int(float64(c1-c0) / t1.Sub(t0).Seconds() / 1000)
}
