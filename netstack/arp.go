package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// answerARP answers every question with the gateway's address. A connection to a neighbour that does not exist is
// then refused at once and logged, like any other. Nothing is learned from a guest's ARP, so there is no table to
// poison. A question for the guest's own address (an announcement, a probe) gets no answer.
func answerARP(body []byte) (frame []byte, why Drop) {
	if len(body) < header.ARPSize {
		return nil, DropMalformed
	}
	ask := header.ARP(body[:header.ARPSize])
	if !ask.IsValid() {
		return nil, DropMalformed
	}
	guest := GuestAddr.As4()
	if ask.Op() != header.ARPRequest || string(ask.ProtocolAddressTarget()) == string(guest[:]) {
		return nil, DropARP
	}
	frame = appendEthernet(nil, header.ARPProtocolNumber)
	frame = append(frame, make([]byte, header.ARPSize)...)
	answer := header.ARP(frame[header.EthernetMinimumSize:])
	answer.SetIPv4OverEthernet()
	answer.SetOp(header.ARPReply)
	copy(answer.HardwareAddressSender(), gatewayMAC)
	copy(answer.ProtocolAddressSender(), ask.ProtocolAddressTarget())
	copy(answer.HardwareAddressTarget(), guestMAC)
	copy(answer.ProtocolAddressTarget(), ask.ProtocolAddressSender())
	return frame, ""
}
