package netstack

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// ethernet returns a frame from the guest to the gateway.
func ethernet(kind uint16, body []byte) []byte {
	f := append([]byte{}, gatewayMAC...)
	f = append(f, guestMAC...)
	return append(binary.BigEndian.AppendUint16(f, kind), body...)
}

// packetIPv4 returns an IPv4 packet with a correct checksum, after edit.
func packetIPv4(proto uint8, payload []byte, edit func(header.IPv4)) []byte {
	b := make([]byte, header.IPv4MinimumSize+len(payload))
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(b)), TTL: 64, Protocol: proto,
		SrcAddr: tcpip.AddrFrom4(GuestAddr.As4()), DstAddr: tcpip.AddrFrom4(GatewayAddr.As4())})
	copy(b[header.IPv4MinimumSize:], payload)
	if edit != nil {
		edit(ip)
	}
	if n := int(ip.HeaderLength()); n >= header.IPv4MinimumSize && n <= len(b) {
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	return b
}

func udpOf(srcPort, dstPort uint16, length int, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, srcPort)
	b = binary.BigEndian.AppendUint16(b, dstPort)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	return append(append(b, 0, 0), payload...)
}

func TestClassify(t *testing.T) {
	const tcpProto, udpProto, icmp = 6, 17, 1
	goodTCP := make([]byte, 20)
	ip4 := func(proto uint8, payload []byte, edit func(header.IPv4)) []byte {
		return ethernet(0x0800, packetIPv4(proto, payload, edit))
	}
	tcp := func(edit func(header.IPv4)) []byte { return ip4(tcpProto, goodTCP, edit) }
	from := func(a [4]byte) []byte {
		return tcp(func(ip header.IPv4) { ip.SetSourceAddress(tcpip.AddrFrom4(a)) })
	}
	to := func(a [4]byte) []byte {
		return tcp(func(ip header.IPv4) { ip.SetDestinationAddress(tcpip.AddrFrom4(a)) })
	}
	beyond := func(ip header.IPv4) { ip[0] = 0x4f }
	first := func(ip header.IPv4) { ip.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, 0) }
	later := func(ip header.IPv4) { ip.SetFlagsFragmentOffset(0, 8) }
	udp := func(length int) []byte { return ip4(udpProto, udpOf(1, 2, length, []byte("x")), nil) }
	with := func(f []byte, i int, b byte) []byte { f[i] = b; return f }
	for name, c := range map[string]struct {
		frame []byte
		kind  frameKind
		drop  Drop
	}{
		"nothing":                       {nil, frameDropped, DropRunt},
		"one byte":                      {[]byte{1}, frameDropped, DropRunt},
		"a byte short of a header":      {make([]byte, 13), frameDropped, DropRunt},
		"zeros":                         {make([]byte, 60), frameDropped, DropSource},
		"header only":                   {ethernet(0x0800, nil), frameDropped, DropMalformed},
		"another card's address":        {with(tcp(nil), 11, 9), frameDropped, DropSource},
		"to another card":               {with(tcp(nil), 5, 9), frameDropped, DropMulticast},
		"IPv6":                          {ethernet(0x86dd, make([]byte, 40)), frameDropped, DropIPv6},
		"VLAN":                          {ethernet(0x8100, make([]byte, 40)), frameDropped, DropEtherType},
		"ARP":                           {ethernet(0x0806, make([]byte, 28)), frameARP, ""},
		"19 bytes of IPv4":              {ethernet(0x0800, make([]byte, 19)), frameDropped, DropMalformed},
		"total length beyond the frame": {tcp(func(ip header.IPv4) { ip.SetTotalLength(1400) }), frameDropped, DropMalformed},
		"total length below the header": {tcp(func(ip header.IPv4) { ip.SetTotalLength(10) }), frameDropped, DropMalformed},
		"header length beyond":          {ip4(tcpProto, nil, beyond), frameDropped, DropMalformed},
		"header length of four":         {tcp(func(ip header.IPv4) { ip[0] = 0x41 }), frameDropped, DropMalformed},
		"version 6 in an IPv4 frame":    {tcp(func(ip header.IPv4) { ip[0] = 0x65 }), frameDropped, DropMalformed},
		"wrong checksum":                {with(tcp(nil), 14+10, 0), frameDropped, DropMalformed},
		"options":                       {tcp(func(ip header.IPv4) { ip[0] = 0x46 }), frameDropped, DropOptions},
		"first fragment":                {tcp(first), frameDropped, DropFragment},
		"later fragment":                {tcp(later), frameDropped, DropFragment},
		"spoofed source":                {from([4]byte{10, 0, 2, 16}), frameDropped, DropSource},
		"the gateway's own source":      {from(GatewayAddr.As4()), frameDropped, DropSource},
		"loopback source":               {from([4]byte{127, 0, 0, 1}), frameDropped, DropSource},
		"TCP to the loopback":           {to([4]byte{127, 0, 0, 1}), frameDropped, DropTarget},
		"TCP to everybody":              {to(header.IPv4Broadcast.As4()), frameDropped, DropTarget},
		"TCP to itself":                 {to(GuestAddr.As4()), frameDropped, DropTarget},
		"ICMP":                          {ip4(icmp, make([]byte, 8), nil), frameDropped, DropICMP},
		"IGMP":                          {ip4(2, make([]byte, 8), nil), frameDropped, DropProtocol},
		"GRE":                           {ip4(47, make([]byte, 80), nil), frameDropped, DropProtocol},
		"TCP of 19 bytes":               {ip4(tcpProto, goodTCP[:19], nil), frameDropped, DropMalformed},
		"TCP":                           {tcp(nil), frameTCP, ""},
		"UDP of 7 bytes":                {ip4(udpProto, make([]byte, 7), nil), frameDropped, DropMalformed},
		"UDP that lies: longer":         {udp(100), frameDropped, DropMalformed},
		"UDP that lies: shorter":        {udp(3), frameDropped, DropMalformed},
		"UDP":                           {udp(9), frameUDP, ""},
	} {
		kind, p := classify(c.frame)
		if kind != c.kind || p.drop != c.drop {
			t.Errorf("%s: kind %d, drop %q; want %d, %q", name, kind, p.drop, c.kind, c.drop)
		}
	}
	_, p := classify(udp(9))
	if string(p.payload) != "x" || p.srcPort != 1 || p.dstPort != 2 || p.src != GuestAddr || p.dst != GatewayAddr {
		t.Errorf("%+v", p)
	}
}

func FuzzClassify(f *testing.F) {
	f.Add(ethernet(0x0800, packetIPv4(17, udpOf(1, 53, 9, []byte("x")), nil)))
	f.Add(ethernet(0x0806, make([]byte, 28)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		kind, p := classify(frame)
		if (kind == frameDropped) != (p.drop != "") {
			t.Errorf("kind %d with drop %q", kind, p.drop)
		}
		if kind == frameTCP && p.src != GuestAddr {
			t.Error("TCP from somebody else")
		}
		switch kind { // and the code behind it does not panic either
		case frameARP:
			answerARP(p.payload)
		case frameUDP:
			answerDHCP(p.payload)
			answerDNS(&filter{}, newNames(), p.payload)
		}
	})
}

func arp(op uint16, target [4]byte) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, byte(op >> 8), byte(op)}
	b = append(append(b, guestMAC...), 10, 0, 2, 15)
	return append(append(b, 0, 0, 0, 0, 0, 0), target[:]...)
}

func TestARP(t *testing.T) {
	frame, why := answerARP(arp(1, [4]byte{10, 0, 2, 2}))
	if why != "" || len(frame) < 14+28 {
		t.Fatalf("%q %x", why, frame)
	}
	a := header.ARP(frame[14:])
	if a.Op() != header.ARPReply || string(a.HardwareAddressSender()) != string(gatewayMAC) ||
		string(a.ProtocolAddressSender()) != "\x0a\x00\x02\x02" || string(a.ProtocolAddressTarget()) != "\x0a\x00\x02\x0f" {
		t.Errorf("%x", frame)
	}
	if frame, _ := answerARP(arp(1, [4]byte{169, 254, 169, 254})); frame == nil ||
		string(header.ARP(frame[14:]).ProtocolAddressSender()) != "\xa9\xfe\xa9\xfe" {
		t.Errorf("a neighbour that is not there: %x", frame)
	}
	for name, c := range map[string]struct {
		body []byte
		drop Drop
	}{
		"nothing":          {nil, DropMalformed},
		"27 bytes":         {arp(1, [4]byte{10, 0, 2, 2})[:27], DropMalformed},
		"an announcement":  {arp(1, [4]byte{10, 0, 2, 15}), DropARP},
		"a reply":          {arp(2, [4]byte{10, 0, 2, 2}), DropARP},
		"RARP":             {arp(3, [4]byte{10, 0, 2, 2}), DropARP},
		"token ring":       {append([]byte{0, 6}, arp(1, [4]byte{10, 0, 2, 2})[2:]...), DropMalformed},
		"odd address size": {append([]byte{0, 1, 8, 0, 6, 16}, arp(1, [4]byte{10, 0, 2, 2})[6:]...), DropMalformed},
	} {
		if frame, why := answerARP(c.body); frame != nil || why != c.drop {
			t.Errorf("%s: %q %x", name, why, frame)
		}
	}
}

func TestDHCP(t *testing.T) {
	discover, err := dhcpv4.NewDiscovery(guestMAC)
	if err != nil {
		t.Fatal(err)
	}
	offer := dhcpAnswer(t, discover)
	if offer.MessageType() != dhcpv4.MessageTypeOffer || offer.YourIPAddr.String() != "10.0.2.15" ||
		offer.DNS()[0].String() != "10.0.2.2" || offer.Router()[0].String() != "10.0.2.2" {
		t.Errorf("%s", offer.Summary())
	}
	request, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		t.Fatal(err)
	}
	if ack := dhcpAnswer(t, request); ack.MessageType() != dhcpv4.MessageTypeAck ||
		ack.TransactionID != request.TransactionID {
		t.Errorf("%s", ack.Summary())
	}
	other, _ := dhcpv4.NewDiscovery(net.HardwareAddr{1, 2, 3, 4, 5, 6})
	release, _ := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeRelease), dhcpv4.WithHwAddr(guestMAC))
	for name, c := range map[string]struct {
		body []byte
		drop Drop
	}{
		"nothing":         {nil, DropMalformed},
		"cut":             {discover.ToBytes()[:100], DropMalformed},
		"no cookie":       {make([]byte, 240), DropMalformed},
		"somebody else":   {other.ToBytes(), DropDHCP},
		"a release":       {release.ToBytes(), DropDHCP},
		"an answer":       {offer.ToBytes(), DropDHCP},
		"option too long": {append(discover.ToBytes()[:240], 53, 200, 1), DropMalformed},
	} {
		if frame, why := answerDHCP(c.body); frame != nil || why != c.drop {
			t.Errorf("%s: %q, %d bytes", name, why, len(frame))
		}
	}
}

// dhcpAnswer returns the answer to a message, without its frame.
func dhcpAnswer(t *testing.T, m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	t.Helper()
	frame, why := answerDHCP(m.ToBytes())
	if frame == nil {
		t.Fatalf("no answer: %s", why)
	}
	ip := header.IPv4(frame[14:])
	if !ip.IsValid(len(ip)) || !ip.IsChecksumValid() || ip.DestinationAddress() != header.IPv4Broadcast {
		t.Fatalf("%x", frame)
	}
	answer, err := dhcpv4.FromBytes(header.UDP(ip.Payload()).Payload())
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func dnsQuery(name string, kind dnsmessage.Type) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func TestDNSDeniesAll(t *testing.T) {
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeNS} {
		answer, d := answerDNS(&filter{}, newNames(), dnsQuery("example.com.", kind))
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil || m.RCode != dnsmessage.RCodeNameError || m.ID != 7 || !m.Response ||
			len(m.Answers) != 0 {
			t.Errorf("%v: %v %+v", kind, err, m)
		}
		if d == nil || d.Verdict != Denied || d.Name != "example.com." {
			t.Errorf("%+v", d)
		}
	}
	long := append(dnsQuery("example.com.", dnsmessage.TypeA), make([]byte, maxDNSQuery)...)
	response := dnsQuery("example.com.", dnsmessage.TypeA)
	response[2] |= 0x80
	for name, body := range map[string][]byte{"nothing": nil, "header only": make([]byte, 12), "too long": long,
		"a response": response, "cut": dnsQuery("example.com.", dnsmessage.TypeA)[:20],
		"a name that points at itself": {0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c, 0, 1, 0, 1}} {
		if answer, d := answerDNS(&filter{}, newNames(), body); answer != nil || d == nil || d.Verdict != Denied {
			t.Errorf("%s: %x %+v", name, answer, d)
		}
	}
}

func TestUDPFrame(t *testing.T) {
	f := udpFrame(GatewayAddr, GuestAddr, 53, 1234, []byte("answer"))
	ip := header.IPv4(f[14:])
	u := header.UDP(ip.Payload())
	from, _ := netip.AddrFromSlice(ip.SourceAddressSlice())
	if !ip.IsValid(len(ip)) || !ip.IsChecksumValid() || from != GatewayAddr || u.DestinationPort() != 1234 ||
		string(u.Payload()) != "answer" {
		t.Errorf("%x", f)
	}
	if sum := u.CalculateChecksum(checksum.Checksum(u.Payload(),
		header.PseudoHeaderChecksum(header.UDPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(),
			u.Length()))); sum != 0xffff {
		t.Errorf("checksum adds up to %#x", sum)
	}
}
