package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// frameKind selects the handler of a frame. The zero value drops it.
type frameKind int

const (
	frameDropped frameKind = iota
	frameARP
	frameUDP
	frameTCP
)

// packet is the result of classify. src, dst and the ports are valid for UDP and TCP; payload follows the last
// header that was parsed.
type packet struct {
	drop             Drop // reason, for frameDropped
	src, dst         netip.Addr
	srcPort, dstPort uint16
	payload          []byte
}

// classify parses a frame of any length. It is pure, and the only function that reads a frame's outer headers.
func classify(frame []byte) (frameKind, packet) {
	drop := func(d Drop) (frameKind, packet) { return frameDropped, packet{drop: d} }
	if len(frame) < header.EthernetMinimumSize {
		return drop(DropRunt)
	}
	eth := header.Ethernet(frame)
	if string(eth.SourceAddress()) != string(guestMAC) {
		return drop(DropSource)
	}
	dst := eth.DestinationAddress()
	broadcast := dst == header.EthernetBroadcastAddress
	if !broadcast && string(dst) != string(gatewayMAC) {
		return drop(DropMulticast)
	}
	body := frame[header.EthernetMinimumSize:]
	switch eth.Type() {
	case header.ARPProtocolNumber:
		return frameARP, packet{payload: body}
	case header.IPv6ProtocolNumber:
		return drop(DropIPv6)
	case header.IPv4ProtocolNumber:
		return classifyIPv4(body, broadcast)
	}
	return drop(DropEtherType)
}

func classifyIPv4(body []byte, broadcast bool) (frameKind, packet) {
	drop := func(d Drop) (frameKind, packet) { return frameDropped, packet{drop: d} }
	ip := header.IPv4(body)
	if len(body) < header.IPv4MinimumSize || !ip.IsValid(len(body)) || !ip.IsChecksumValid() {
		return drop(DropMalformed)
	}
	if ip.HeaderLength() != header.IPv4MinimumSize {
		return drop(DropOptions)
	}
	if ip.More() || ip.FragmentOffset() != 0 {
		return drop(DropFragment)
	}
	p := packet{src: addrOf(ip.SourceAddress()), dst: addrOf(ip.DestinationAddress())}
	payload := ip.Payload()
	switch ip.TransportProtocol() {
	case header.UDPProtocolNumber:
		if len(payload) < header.UDPMinimumSize {
			return drop(DropMalformed)
		}
		udp := header.UDP(payload)
		if n := int(udp.Length()); n < header.UDPMinimumSize || n > len(payload) {
			return drop(DropMalformed)
		}
		p.srcPort, p.dstPort, p.payload = udp.SourcePort(), udp.DestinationPort(), payload[header.UDPMinimumSize:udp.Length()]
		return frameUDP, p
	case header.TCPProtocolNumber:
		if broadcast || p.src != GuestAddr {
			return drop(DropSource)
		}
		if p.dst.IsLoopback() || p.dst.IsMulticast() || p.dst.IsUnspecified() || p.dst == GuestAddr || p.dst.As4()[0] >= 240 {
			return drop(DropTarget)
		}
		if len(payload) < header.TCPMinimumSize {
			return drop(DropMalformed)
		}
		tcp := header.TCP(payload)
		p.srcPort, p.dstPort = tcp.SourcePort(), tcp.DestinationPort()
		return frameTCP, p
	case header.ICMPv4ProtocolNumber:
		return drop(DropICMP)
	}
	return drop(DropProtocol)
}

func addrOf(a tcpip.Address) netip.Addr { return netip.AddrFrom4(a.As4()) }

// appendEthernet appends a header from the gateway to the guest.
func appendEthernet(buf []byte, proto tcpip.NetworkProtocolNumber) []byte {
	buf = append(buf, guestMAC...)
	buf = append(buf, gatewayMAC...)
	return append(buf, byte(proto>>8), byte(proto))
}

// udpFrame returns a complete frame to the guest.
func udpFrame(src, dst netip.Addr, srcPort, dstPort uint16, payload []byte) []byte {
	const headers = header.EthernetMinimumSize + header.IPv4MinimumSize + header.UDPMinimumSize
	frame := make([]byte, headers, headers+len(payload))
	copy(frame, appendEthernet(nil, header.IPv4ProtocolNumber))
	frame = append(frame, payload...)
	from, to := tcpip.AddrFrom4(src.As4()), tcpip.AddrFrom4(dst.As4())
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip)), TTL: 64, Protocol: uint8(header.UDPProtocolNumber), SrcAddr: from, DstAddr: to,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	udp := header.UDP(ip[header.IPv4MinimumSize:])
	udp.Encode(&header.UDPFields{SrcPort: srcPort, DstPort: dstPort, Length: uint16(len(udp))})
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, from, to, uint16(len(udp)))
	udp.SetChecksum(^udp.CalculateChecksum(checksum.Checksum(payload, sum)))
	return frame
}
