//go:build !amd64

package vmm

// HostTSCKHz is 0: this host has no time stamp counter, and what QEMU's TCG gives a guest
// of amd64 in its place here counts how often it was read.
func HostTSCKHz() int { return 0 }
