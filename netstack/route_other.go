//go:build !linux

package netstack

import "net/netip"

// routedHere supports only Linux: elsewhere only the addresses of the interfaces decide.
func routedHere(netip.Addr) (bool, error) { return false, nil }
