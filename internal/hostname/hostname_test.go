package hostname

import (
	"net/netip"
	"testing"
)

func TestNumeric(t *testing.T) {
	for name, want := range map[string]bool{
		"": true, ".": true, "1": true, "127.1": true, "a.1": true, "a.": true, "0x7f.1": true, "a.0x7f": true, "0x": true,
		"2130706433": true,
		"a":          false, "1.a": false, "127.1.a": false, "a1": false, "1a": false, "x0x": false, "example.com": false,
	} {
		if got := Numeric(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestLoopback(t *testing.T) {
	for text, want := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "::1": true, "0.0.0.0": false,
		"::": false, "192.0.2.1": false} {
		if got := Loopback("", netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	for name, want := range map[string]bool{"localhost": true, "": false, "localhost.example": false, "LOCALHOST": false} {
		if got := Loopback(name, netip.Addr{}); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
