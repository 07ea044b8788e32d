package netstack

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

// After Cut a guest that goes on has no network, and the host still talks to it.
func TestAttackAfterCut(t *testing.T) {
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"e.example": {"93.184.216.34"}}, servers: map[string]string{"93.184.216.34:99": echo, "127.0.0.1:98": echo}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Rules: []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true},
		{Text: "l", Host: "localhost", Port: 98, Raw: true}}})
	agent, err := gonet.ListenTCP(g.stack, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(GuestAddr.As4()), Port: 7}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	host, err := g.n.DialGuest(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	inside, err := agent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	open, err := g.dial("e.example", 99)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	buf := make([]byte, 4)
	if _, err := io.WriteString(open, "live"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(open, buf); err != nil {
		t.Fatal(err)
	}

	g.n.Cut()
	g.n.Cut()
	_ = open.SetDeadline(time.Now().Add(guestPatience))
	saw := func(err error) string {
		if err != nil {
			return "refused"
		}
		return "served"
	}
	_, err = open.Read(buf)
	attack.Check(t, "after the cut: a connection that was open", "refused", saw(err))
	_, err = g.dialAddr(synthetic.Addr().Next().Next(), 99)
	attack.Check(t, "after the cut: a name that was looked up before", "refused", saw(err))
	_, err = g.dialAddr(GatewayAddr, 98)
	attack.Check(t, "after the cut: the host's loopback", "refused", saw(err))
	before := g.n.Stats()[DropCut]
	g.n.handle(ethernet(0x0800, packetIPv4(17, udpPacket(dnsQuery("e.example.", 1)), nil)))
	got := "answered"
	if g.n.Stats()[DropCut] == before+1 {
		got = "dropped"
	}
	attack.Check(t, "after the cut: a name", "dropped", got)
	for _, way := range [][2]net.Conn{{host, inside}, {inside, host}} {
		_ = way[1].SetReadDeadline(time.Now().Add(guestPatience))
		if _, err := io.WriteString(way[0], "more"); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(way[1], buf); err != nil || string(buf) != "more" {
			t.Errorf("the host's own conversation: %q %v", buf, err)
		}
	}
}
