//go:build !amd64

package vmm

// HostTSCKHz measures the frequency of this host's time stamp counter, or 0
// where there is none.
func HostTSCKHz() int { return 0 }
