// Package publicaddr decides which addresses a name under foreign control may lead to. Only public Internet addresses
// are allowed, and none of this host or its network. It judges an address alone, and never looks up or dials anything.
// Package netstack calls it for machines, packages fetch and install for the host itself.
package publicaddr

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// notPublic are the networks that a name under foreign control must not lead to (IANA's special-purpose registries; the
// metadata services of clouds). Of IPv6, everything outside 2000::/3 is not public either.
var notPublic = func() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range strings.Fields(`
		0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.31.196.0/24
		192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3
		168.63.129.16/32
		2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20`) {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}()

// globalUnicast is the part of IPv6 that IANA assigns for the Internet.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// translated are the networks whose last 32 bits a translator of the host's network turns into an IPv4 address: NAT64
// (RFC 6052), SIIT (RFC 2765). The address has no fixed place in the network for local use (64:ff9b:1::/48, RFC 8215),
// and 6to4 and Teredo are obsolete. These three are never public.
var translated = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("::ffff:0:0:0/96")}

// Reasons why an address must not be dialled.
var (
	ErrNotPublic = errors.New("not a public address")
	ErrOwn       = errors.New("an address of this host or of its network")
)

// Unwrap returns the IPv4 address that a mapped or translated address stands for, and every other address unchanged.
func Unwrap(addr netip.Addr) netip.Addr {
	addr = addr.Unmap()
	for _, p := range translated {
		if p.Contains(addr) {
			b := addr.As16()
			return netip.AddrFrom4([4]byte(b[12:]))
		}
	}
	return addr
}

// isatap returns the IPv4 address in an interface identifier of ISATAP (RFC 5214, section 6.1), the end of a tunnel.
func isatap(addr netip.Addr) (netip.Addr, bool) {
	b := addr.As16()
	if addr.Is4() || b[8]&^0x02 != 0 || b[9] != 0 || b[10] != 0x5e || b[11] != 0xfe {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(b[12:])), true
}

// Public reports whether an address is a public Internet address, as far as the address itself shows.
func Public(addr netip.Addr) bool {
	if !addr.IsValid() || addr.Zone() != "" {
		return false
	}
	addr = Unwrap(addr)
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(addr) {
			return false
		}
	}
	inner, tunnel := isatap(addr)
	return !tunnel || Public(inner)
}

// Check returns why an address must not be dialled; nil if it may be. local are the addresses of the host's interfaces,
// each with its network. Both are forbidden, even if public: services there may rely on a firewall that protects them
// from outside, and we are inside.
func Check(addr netip.Addr, local []netip.Prefix) error {
	if !Public(addr) {
		return ErrNotPublic
	}
	addr = Unwrap(addr)
	inner, _ := isatap(addr)
	for _, p := range local {
		own := p.Addr().Unmap()
		// A network of all addresses (0.0.0.0/0) belongs to a tunnel, not to a link.
		if own == addr || own == inner || p.Bits() > 0 && (p.Contains(addr) || p.Contains(inner)) {
			return ErrOwn
		}
	}
	return nil
}

// LocalNetworks returns the current addresses of the host's interfaces, each with its network.
func LocalNetworks() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	var list []netip.Prefix
	for _, a := range addrs {
		ipnet, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(ipnet.IP)
		if !ok {
			return nil, fmt.Errorf("list the host's addresses: %v is not one", ipnet)
		}
		addr = addr.Unmap()
		bits, _ := ipnet.Mask.Size()
		list = append(list, netip.PrefixFrom(addr, min(bits, addr.BitLen())))
	}
	return list, nil
}
