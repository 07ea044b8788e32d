package netstack

import (
	"net/netip"
	"sync"
)

// names assigns a synthetic address, for this run, to each allowed name that the guest looks up. The addresses
// come from the network for benchmarks (198.18.0.0/15, RFC 2544). The guest never sees a real address, so names
// can't be confused: a connection's address identifies its name.
type names struct {
	mu     sync.Mutex
	byName map[string]netip.Addr
	byAddr map[netip.Addr]string
}

// maxNames bounds the names of a run; wildcards would allow any number.
const maxNames = 1024

var synthetic = netip.MustParsePrefix("198.18.0.0/15")

func newNames() *names {
	return &names{byName: map[string]netip.Addr{}, byAddr: map[netip.Addr]string{}}
}

// addr returns the name's address; false when there are too many names.
func (n *names) addr(name string) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.byName[name]; ok {
		return a, true
	}
	if len(n.byName) >= maxNames {
		return netip.Addr{}, false
	}
	k := len(n.byName) + 1
	a := netip.AddrFrom4([4]byte{198, 18, byte(k >> 8), byte(k)})
	n.byName[name], n.byAddr[a] = a, name
	return a, true
}

func (n *names) name(addr netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byAddr[addr]
}
