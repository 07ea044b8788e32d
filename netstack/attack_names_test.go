package netstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/publicaddr"
)

type attackNamesToPrivateRow struct{ name, addr, want string }

// attackNamesToPrivateRows are the cases of TestAttackNamesToPrivate.
func attackNamesToPrivateRows() []attackNamesToPrivateRow {
	return []attackNamesToPrivateRow{
		{"public", "93.184.216.34", "dialled"},
		{"public, IPv6", "2606:2800:220:1::1", "dialled"},
		{"public behind NAT64", "64:ff9b::5db8:d822", "dialled"},
		{"loopback", "127.0.0.1", "not public"},
		{"loopback, mapped", "::ffff:127.0.0.1", "not public"},
		{"loopback, compatible", "::127.0.0.1", "not public"},
		{"loopback, translated (SIIT)", "::ffff:0:127.0.0.1", "not public"},
		{"private, translated (SIIT)", "::ffff:0:10.0.0.1", "not public"},
		{"loopback behind NAT64", "64:ff9b::7f00:1", "not public"},
		{"metadata behind NAT64", "64:ff9b::a9fe:a9fe", "not public"},
		{"NAT64 for local use", "64:ff9b:1::a9fe:a9fe", "not public"},
		{"loopback by 6to4", "2002:7f00:1::", "not public"},
		{"loopback by Teredo", "2001:0:4136:e378:8000:63bf:80ff:fffe", "not public"},
		{"private by ISATAP", "2600:1234::5efe:10.0.0.1", "not public"},
		{"private by ISATAP, universal", "2600:1234::200:5efe:10.0.0.1", "not public"},
		{"link-local by ISATAP", "fe80::5efe:93.184.216.34", "not public"},
		{"a zone", "fe80::1%eth0", "not public"},
		{"a public one with a zone", "2606:2800:220:1::1%eth0", "not public"},
		{"link-local", "169.254.1.1", "not public"},
		{"metadata", "169.254.169.254", "not public"},
		{"metadata, IPv6", "fd00:ec2::254", "not public"},
		{"Azure's host", "168.63.129.16", "not public"},
		{"Alibaba's metadata", "100.100.100.200", "not public"},
		{"private, 10/8", "10.0.0.1", "not public"},
		{"carrier's NAT", "100.64.0.1", "not public"},
		{"nowhere", "0.0.0.0", "not public"},
		{"nowhere, IPv6", "::", "not public"},
		{"multicast", "239.1.2.3", "not public"},
		{"unassigned IPv6", "4000::1", "not public"},
		{"the host's own public address", "93.184.216.40", "the host's own"},
		{"a neighbour on its link", "93.184.216.47", "the host's own"},
		{"next to its link", "93.184.216.48", "dialled"},
		{"the host's own, mapped", "::ffff:93.184.216.40", "the host's own"},
		{"the host's own behind NAT64", "64:ff9b::5db8:d828", "the host's own"},
		{"the host's own, translated (SIIT)", "::ffff:0:93.184.216.40", "the host's own"},
		{"the host's own by ISATAP", "2606:2800::5efe:93.184.216.40", "the host's own"},
		{"the host's own, IPv6", "2600:1:2:3::9", "the host's own"},
		{"a neighbour, IPv6", "2600:1:2:3:ffff::1", "the host's own"},
		{"the host's own by a route", "93.184.217.9", "the host's own"},
		{"the host's own by a route, mapped", "::ffff:93.184.217.9", "the host's own"},
		{"the host's own by a route, behind NAT64", "64:ff9b::5db8:d909", "the host's own"},
		{"the end of a tunnel that has all addresses", "8.8.4.4", "the host's own"},
		{"what is behind that tunnel", "8.8.8.8", "dialled"},
	}
}

// dialOutside returns the result of a connection to the outside.
func dialOutside(u Upstream, t target, r *Rule) string {
	conn, dialled, err := u.dial(context.Background(), t, r, nil)
	switch {
	case errors.Is(err, publicaddr.ErrOwn):
		return "the host's own"
	case errors.Is(err, publicaddr.ErrNotPublic):
		return "not public"
	case errors.Is(err, errNoName):
		return "no name"
	case err != nil:
		return err.Error()
	}
	conn.Close()
	return "dialled " + dialled
}

// likeAddresses are texts that look like addresses.
var likeAddresses = []string{
	"169.254.169.254", "127.0.0.1", "127.1", "127.0.1", "0x7f000001", "0x7f.1", "0X7F.0.0.1", "2130706433",
	"017700000001", "0177.0.0.1", "0", "127.0.0.1.", "127.1.", "a.b.127", "1.0x", "example.0x10",
	"169.254.169.254.", "::1", "fe80::1%eth0", "::ffff:127.0.0.1", "[::1]", "127。0。0。1", "127.0.0.1:80",
	"localhost/", "a..b",
}

// Names with private addresses, and texts that some resolver or proxy takes for an address. They are tested with and
// without a proxy, against every rule that could allow them.
func TestAttackNamesToPrivate(t *testing.T) {
	local := []netip.Prefix{netip.MustParsePrefix("93.184.216.40/29"), netip.MustParsePrefix("192.168.7.9/24"),
		netip.MustParsePrefix("2600:1:2:3::9/64"), netip.MustParsePrefix("8.8.4.4/0")}
	routed := netip.MustParsePrefix("93.184.217.0/24") // by a separate route, not an interface's
	proxied := ""
	proxy := newScripted(t, "", "HTTP/1.1 200 OK\r\n\r\n")
	resolved := map[string]string{}
	outside := func(withProxy bool) Upstream {
		u := Upstream{
			Local: func() ([]netip.Prefix, error) { return local, nil },
			Here:  func(a netip.Addr) (bool, error) { return routed.Contains(a), nil },
			Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
				if a, err := netip.ParseAddr(resolved[name]); err == nil {
					return []netip.Addr{a}, nil
				}
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil // a lenient resolver's result
			},
			Dial: func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
				c, _ := net.Pipe()
				return c, nil
			},
		}
		if withProxy {
			u.Proxy = func(host string, _ uint16) *url.URL {
				proxied = host
				return &url.URL{Scheme: "http", Host: proxy.addr}
			}
		}
		return u.withDefaults()
	}
	try := func(u Upstream, t target, r *Rule) string {
		return strings.Replace(dialOutside(u, t, r), proxy.addr, "PROXY", 1)
	}
	anything := &Rule{Text: "any", Any: true}

	// As a name: a text that looks like an address is not a name, whoever would resolve it.
	for _, name := range likeAddresses {
		for _, with := range []bool{false, true} {
			proxied = ""
			way := ""
			if with {
				way = ", with a proxy"
			}
			attack.Check(t, "a name: "+name+way, "no name", try(outside(with), target{name: name, port: 80}, anything))
			if proxied != "" {
				t.Errorf("the proxy was asked for %q", proxied)
			}
		}
		if name, ok := normalName(name); ok && name != "localhost" {
			t.Errorf("%q is a name to DNS, SNI and Host", name)
		}
	}
	// As an answer of the resolver, and as an address in a rule.
	for _, c := range attackNamesToPrivateRows() {
		addr := netip.MustParseAddr(c.addr)
		want := c.want
		if want == "dialled" {
			want += " " + netip.AddrPortFrom(addr, 80).String()
		}
		resolved["n.example"] = c.addr
		attack.Check(t, "a name that leads to: "+c.name, want,
			try(outside(false), target{name: "n.example", port: 80}, &Rule{Text: "n", Host: "n.example"}))
		named, rule := target{addr: addr, port: 80}, &Rule{Text: "a", Addr: addr}
		attack.Check(t, "an address that is named: "+c.name, want, try(outside(false), named, rule))
		if c.want == "dialled" {
			want = "dialled proxy PROXY"
		}
		attack.Check(t, "an address that is named, with a proxy: "+c.name, want, try(outside(true), named, rule))
		// --allow-tcp may name each of them.
		raw := &Rule{Text: "r", Addr: addr, Port: 80, Raw: true}
		want = "dialled " + netip.AddrPortFrom(addr.Unmap(), 80).String()
		if got := try(outside(false), named, raw); got != want {
			t.Errorf("%s by a raw rule: %s", c.name, got)
		}
	}
	broken := outside(false)
	broken.Local = func() ([]netip.Prefix, error) { return nil, errors.New("no netlink") }
	resolved["n.example"] = "93.184.216.34"
	attack.Check(t, "a host that can't say what its addresses are", "no netlink",
		try(broken, target{name: "n.example", port: 80}, &Rule{Host: "n.example"}))
}

// The socket itself is checked, too: an address that became the host's own after its check is not connected to.
func TestAttackCheckedAtTheSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := netip.MustParseAddrPort(l.Addr().String())
	var checked []netip.Addr
	conn, err := Upstream{}.connect(t.Context(), to, func(a netip.Addr) error {
		checked = append(checked,
			a)
		return publicaddr.ErrOwn
	})
	got := "connected"
	if errors.Is(err, publicaddr.ErrOwn) && conn == nil {
		got = "refused"
	}
	attack.Check(t, "an address that became the host's own", "refused", got)
	if len(checked) != 1 || checked[0] != to.Addr() {
		t.Errorf("checked %v", checked)
	}
	if conn, err := (Upstream{}).connect(t.Context(), to, func(netip.Addr) error { return nil }); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
	local, err := publicaddr.LocalNetworks()
	if err != nil {
		t.Fatal(err)
	}
	// All addresses of this machine are forbidden.
	for _, p := range local {
		if err := publicaddr.Check(p.Addr(), local); err == nil {
			t.Errorf("%s is open", p)
		}
	}
	if len(local) == 0 {
		t.Error("this host has no address")
	}
}

// The host's search domains are never applied: the resolver is asked only for the name itself.
func TestAttackSearchDomains(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				return
			}
			mu.Lock()
			asked = append(asked, m.Questions[0].Name.String())
			mu.Unlock()
			m.Response, m.RCode, m.Additionals = true, dnsmessage.RCodeNameError, nil
			answer, _ := m.Pack()
			_, _ = pc.WriteTo(answer, from)
		}
	}()
	kept := net.DefaultResolver
	defer func() { net.DefaultResolver = kept }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
	for _, name := range []string{"api.partner.test", "intranet"} {
		mu.Lock()
		asked = nil
		mu.Unlock()
		_, err := Upstream{}.withDefaults().Resolve(t.Context(), name)
		got := "asked for it alone"
		mu.Lock()
		for _, q := range asked {
			if q != name+"." {
				got = "asked for " + q
			}
		}
		if len(asked) == 0 || err == nil {
			got = fmt.Sprintf("not asked: %v", err)
		}
		mu.Unlock()
		attack.Check(t, "search domains for "+name, "asked for it alone", got)
	}
}

func TestAttackDNS(t *testing.T) {
	question := func(m dnsmessage.Message, qs ...dnsmessage.Question) []byte {
		m.Questions = qs
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	q := func(name string, kind dnsmessage.Type) dnsmessage.Question {
		return dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}
	}
	const typeA = dnsmessage.TypeA
	good := q("good.example.", typeA)
	chaos := good
	chaos.Class = dnsmessage.ClassCHAOS
	plain := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}}
	header := func(edit func(*dnsmessage.Header)) dnsmessage.Message {
		m := plain
		edit(&m.Header)
		return m
	}
	long := strings.Repeat(strings.Repeat("a", 63)+".", 3)
	const noName, none = "RCodeNameError, no answer", "RCodeSuccess, no answer"
	const head = "\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" // of one question
	raw := func(text string) []byte { return []byte(head + text) }
	for _, c := range []struct {
		name string
		body []byte
		want string
	}{
		{"an allowed name", question(plain, good), "198.18.0.1"},
		{"an allowed name in upper case", question(plain, q("GOOD.example.", typeA)), "198.18.0.1"},
		{"IPv6 of an allowed name", question(plain, q("good.example.", dnsmessage.TypeAAAA)), none},
		{"TXT of an allowed name", question(plain, q("good.example.", dnsmessage.TypeTXT)), none},
		{"any type of an allowed name", question(plain, q("good.example.", dnsmessage.TypeALL)), none},
		{"a transfer of a zone", question(plain, q("good.example.", dnsmessage.Type(252))), none},
		{"an allowed name in another class", question(plain, chaos), noName},
		{"a name that nobody allowed", question(plain, q("evil.example.", typeA)), noName},
		{"data in labels below an allowed name", question(plain, q("c2VjcmV0.good.example.", typeA)), noName},
		{"data in labels of the longest name", question(plain, q(long+"evil.example.", dnsmessage.TypeTXT)), noName},
		{"the root", question(plain, q(".", dnsmessage.TypeNS)), noName},
		{"an address as a name", question(plain, q("127.0.0.1.", typeA)), noName},
		{"a number as a name", question(plain, q("2130706433.", typeA)), noName},
		{"metadata by the reverse", question(plain, q("254.169.254.169.in-addr.arpa.", dnsmessage.TypePTR)), noName},
		{"a label with a NUL", raw("\x05go\x00od\x07example\x00\x00\x01\x00\x01"), noName},
		{"a label with a dot", raw("\x0cgood.example\x00\x00\x01\x00\x01"), "no reply"},
		{"two questions", question(plain, good, q("evil.example.", typeA)), "no reply"},
		{"no question", question(plain), "no reply"},
		{"a response", question(header(func(h *dnsmessage.Header) { h.Response = true }), good), "no reply"},
		{"an update", question(header(func(h *dnsmessage.Header) { h.OpCode = 5 }), good), "no reply"},
		{"a notification", question(header(func(h *dnsmessage.Header) { h.OpCode = 4 }), good), "no reply"},
		{"a name that points at itself", raw("\xc0\x0c\x00\x01\x00\x01"), "no reply"},
		{"a name that points ahead", raw("\xc0\xff\x00\x01\x00\x01"), "no reply"},
		{"a label that is longer than the packet", raw("\x3fgood"), "no reply"},
		{"a header alone", make([]byte, 12), "no reply"},
		{"eleven bytes", make([]byte, 11), "no reply"},
		{"over 512 bytes", append(question(plain, good), make([]byte, 512)...), "no reply"},
	} {
		answer, d := answerDNS(&filter{[]Rule{hostRule("good.example"),
			{Text: "any below", Host: "w.example", Wildcard: true}}}, newNames(), c.body)
		got := "no reply"
		if answer != nil {
			var m dnsmessage.Message
			if err := m.Unpack(answer); err != nil {
				t.Fatal(err)
			}
			got = m.RCode.String() + ", no answer"
			if len(m.Answers) == 1 {
				got = netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A).String()
			}
			if len(answer) > len(c.body)+64 {
				t.Errorf("%s: %d bytes for %d", c.name, len(answer), len(c.body))
			}
		}
		attack.Check(t, "DNS: "+c.name, c.want, got)
		if d == nil || (d.Verdict == Allowed) != (strings.HasPrefix(c.want, "198.") || strings.HasPrefix(c.name, "IPv6")) {
			t.Errorf("%s: %+v", c.name, d)
		}
	}
}
