package netstack

import (
	"context"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// dhcpCard is the guest's end of a link, used as by a DHCP client without an address. It sends UDP from port 68 of
// 0.0.0.0 to the broadcast address.
type dhcpCard struct {
	t    *testing.T
	link net.Conn
}

func (c dhcpCard) WriteTo(p []byte, _ net.Addr) (int, error) {
	ip := packetIPv4(17, udpOf(dhcpClientPort, dhcpServerPort, 8+len(p), p), func(ip header.IPv4) {
		ip.SetSourceAddress(tcpip.AddrFrom4([4]byte{}))
		ip.SetDestinationAddress(header.IPv4Broadcast)
	})
	frame := ethernet(0x0800, ip)
	copy(frame, header.EthernetBroadcastAddress)
	_, err := c.link.Write(appendFrame(nil, frame))
	return len(p), err
}

func (c dhcpCard) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		var length [linkHeader]byte
		if _, err := io.ReadFull(c.link, length[:]); err != nil {
			return 0, nil, os.ErrClosed
		}
		frame := make([]byte, int(length[2])<<8|int(length[3]))
		if _, err := io.ReadFull(c.link, frame); err != nil {
			return 0, nil, os.ErrClosed
		}
		if string(frame[:6]) != string(guestMAC) || frame[12] != 8 || frame[13] != 0 {
			continue
		}
		ip := header.IPv4(frame[header.EthernetMinimumSize:])
		udp := header.UDP(ip.Payload())
		if !ip.IsChecksumValid() || udp.DestinationPort() != dhcpClientPort {
			c.t.Errorf("to port %d: %x", udp.DestinationPort(), frame)
		}
		return copy(p, udp.Payload()), &net.UDPAddr{IP: GatewayAddr.AsSlice(), Port: dhcpServerPort}, nil
	}
}

func (c dhcpCard) Close() error                       { return c.link.Close() }
func (c dhcpCard) LocalAddr() net.Addr                { return &net.UDPAddr{Port: dhcpClientPort} }
func (c dhcpCard) SetDeadline(t time.Time) error      { return c.link.SetDeadline(t) }
func (c dhcpCard) SetReadDeadline(t time.Time) error  { return c.link.SetReadDeadline(t) }
func (c dhcpCard) SetWriteDeadline(t time.Time) error { return c.link.SetWriteDeadline(t) }

// A whole exchange with a third-party client: discover, offer, request, acknowledgement, and the later renewal.
func TestDHCPClient(t *testing.T) {
	n, link := attach(t, Config{})
	client, err := nclient4.NewWithConn(dhcpCard{t, link}, guestMAC, nclient4.WithTimeout(5*time.Second),
		nclient4.WithRetry(1))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lease, err := client.Request(ctx)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, m *dhcpv4.DHCPv4, kind dhcpv4.MessageType) {
		if m.MessageType() != kind || m.YourIPAddr.String() != GuestAddr.String() ||
			m.ServerIdentifier().String() != GatewayAddr.String() ||
			m.SubnetMask().String() != subnetMask.String() || len(m.Router()) != 1 ||
			m.Router()[0].String() != GatewayAddr.String() ||
			len(m.DNS()) != 1 || m.DNS()[0].String() != GatewayAddr.String() || m.IPAddressLeaseTime(0) != leaseTime {
			t.Errorf("%s: %s", what, m.Summary())
		}
	}
	check("offer", lease.Offer, dhcpv4.MessageTypeOffer)
	check("acknowledgement", lease.ACK, dhcpv4.MessageTypeAck)
	again, err := client.Renew(ctx, lease)
	if err != nil {
		t.Fatal(err)
	}
	check("renewal", again.ACK, dhcpv4.MessageTypeAck)
	if drops := n.Stats(); len(drops) != 0 {
		t.Errorf("dropped %v", drops)
	}
}
