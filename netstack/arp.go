package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// answerARP answers the one question a guest needs: who is the gateway. Nothing
// is learned from a guest's ARP, so there is no table to poison; an
// announcement (Linux and QEMU send them) is not answered.
func answerARP(body []byte) (frame []byte, why Drop) {
	if len(body) < header.ARPSize {
		return nil, DropMalformed
	}
	ask := header.ARP(body[:header.ARPSize])
	if !ask.IsValid() {
		return nil, DropMalformed
	}
	gateway := GatewayAddr.As4()
	if ask.Op() != header.ARPRequest || string(ask.ProtocolAddressTarget()) != string(gateway[:]) {
		return nil, DropARP
	}
	frame = appendEthernet(nil, header.ARPProtocolNumber)
	frame = append(frame, make([]byte, header.ARPSize)...)
	answer := header.ARP(frame[header.EthernetMinimumSize:])
	answer.SetIPv4OverEthernet()
	answer.SetOp(header.ARPReply)
	copy(answer.HardwareAddressSender(), gatewayMAC)
	copy(answer.ProtocolAddressSender(), gateway[:])
	copy(answer.HardwareAddressTarget(), guestMAC)
	copy(answer.ProtocolAddressTarget(), ask.ProtocolAddressSender())
	return frame, ""
}
