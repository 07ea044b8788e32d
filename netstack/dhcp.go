package netstack

import (
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

const (
	dhcpServerPort = 67
	dhcpClientPort = 68
	leaseTime      = 24 * time.Hour // longer than any run
)

// answerDHCP gives the guest its one address. No lease can run out: every DISCOVER and REQUEST gets the same
// answer.
func answerDHCP(body []byte) (frame []byte, why Drop) {
	ask, err := dhcpv4.FromBytes(body)
	if err != nil {
		return nil, DropMalformed
	}
	var kind dhcpv4.MessageType
	switch ask.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		kind = dhcpv4.MessageTypeOffer
	case dhcpv4.MessageTypeRequest:
		kind = dhcpv4.MessageTypeAck
	default:
		return nil, DropDHCP
	}
	if ask.OpCode != dhcpv4.OpcodeBootRequest || ask.ClientHWAddr.String() != guestMAC.String() {
		return nil, DropDHCP
	}
	gateway := GatewayAddr.AsSlice()
	answer, err := dhcpv4.NewReplyFromRequest(ask,
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(GuestAddr.AsSlice()),
		dhcpv4.WithServerIP(gateway),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(gateway)),
		dhcpv4.WithNetmask(subnetMask),
		dhcpv4.WithRouter(gateway),
		dhcpv4.WithDNS(gateway),
		dhcpv4.WithLeaseTime(uint32(leaseTime.Seconds())),
	)
	if err != nil {
		return nil, DropDHCP
	}
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return udpFrame(GatewayAddr, broadcast, dhcpServerPort, dhcpClientPort, answer.ToBytes()), ""
}
