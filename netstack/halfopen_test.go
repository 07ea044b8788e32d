package netstack

import (
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/unitask/unitask/internal/attack"
)

// TestAttackHalfOpen: a guest opens connections and never answers ours, or disappears. It does not delay a cut or close
// of its network.
func TestAttackHalfOpen(t *testing.T) {
	echo := echoServer(t)
	for _, row := range []struct {
		name string
		end  func(*Network)
	}{{"cut", (*Network).Cut}, {"closed", func(n *Network) { n.Close() }},
		{"rules are replaced, then closed", func(n *Network) { n.SetRules(nil); n.Close() }}} {
		n, guest := attach(t, Config{Rules: []Rule{{Text: "tcp 10.0.0.5:7", Addr: netip.MustParseAddr("10.0.0.5"), Port: 7,
			Raw: true}},
			Upstream: (&internet{servers: map[string]string{"10.0.0.5:7": echo}}).upstream()})
		const syns = 20
		for i := range syns {
			ip := make([]byte, 40)
			header.IPv4(ip).Encode(&header.IPv4Fields{TotalLength: 40, TTL: 64, Protocol: 6,
				SrcAddr: tcpip.AddrFrom4(GuestAddr.As4()), DstAddr: tcpip.AddrFrom4([4]byte{10, 0, 0, 5})})
			header.IPv4(ip).SetChecksum(^header.IPv4(ip).CalculateChecksum())
			header.TCP(ip[20:]).Encode(&header.TCPFields{SrcPort: uint16(2000 + i), DstPort: 7, SeqNum: 1, DataOffset: 20,
				Flags: header.TCPFlagSyn, WindowSize: 1000})
			sendTo(t, guest, ethernet(0x0800, checksummed(ip)))
		}
		for range syns {
			if frame := receiveFrom(t, guest); len(frame) < 54 || frame[14+20+13]&0x12 != 0x12 {
				t.Fatalf("%s: no answer to a SYN: %x", row.name, frame)
			}
		}
		began := time.Now()
		row.end(n)
		seen := "at once"
		if took := time.Since(began); took > 5*time.Second {
			seen = took.String()
		}
		attack.Check(t, "20 connections that never answer; "+row.name, "at once", seen)
		n.Close()
	}
}
