// Package hostname holds what all packages must agree on about host names. It says which names mean this host, and
// which names some parser would read as an address.
package hostname

import (
	"net/netip"
	"strings"
)

// Local is the one name of this host that is never looked up.
const Local = "localhost"

// Loopback reports whether a name in normal form, or an address, is this host's own
// loopback.
func Loopback(name string, addr netip.Addr) bool {
	return name == Local || addr.IsLoopback()
}

// Numeric reports whether the last label of a name in normal form is a number, or one to inet_aton: 127.1, 0x7f.1,
// 2130706433. Such a name is invalid (RFC 1123, 2.1; the URL standard's "ends in a number"). A resolver that accepts it
// may return any address.
func Numeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x")
}
