//go:build !linux

package mcp

import (
	"errors"
	"net/netip"
)

// peersKnown says whether the peers of loopback connections can be told.
func peersKnown() bool { return false }

func peerUID(peer, own netip.AddrPort) (int, error) {
	return 0, errors.New("the peers of connections can't be told on this system")
}
