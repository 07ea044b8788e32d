//go:build !amd64

package vmm

// HostTSCKHz returns 0: this host has no time stamp counter. For amd64 guests, QEMU's TCG replaces it here with a
// number that counts how often it was read.
func HostTSCKHz() int { return 0 }
