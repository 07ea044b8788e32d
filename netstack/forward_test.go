package netstack

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
)

func TestForwardHTTP(t *testing.T) {
	web := webServer(t)
	net1 := &internet{names: map[string][]string{"a.example": {"93.184.216.34"},
		"b.w.example": {"2606:2800:220:1::1", "93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:80": web.Listener.Addr().String()}}
	g := newGuest(t, Config{Rules: []Rule{hostRule("a.example"), hostRule("*.w.example")}, Upstream: net1.upstream()})
	get := func(host, path string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	}
	if out, err := g.say("a.example", 80, get("a.example", "/x")); err != nil ||
		!strings.Contains(out, "[a.example /x ]") {
		t.Errorf("%q %v", out, err)
	}
	if d := g.log.last(); d.Verdict != Allowed || d.Name != "a.example" || d.Rule != "a.example" || d.BytesUp == 0 ||
		d.BytesDown == 0 || d.Dialled != "93.184.216.34:80" {
		t.Errorf("%+v", d)
	}
	// The second address answers if the first does not.
	if out, err := g.say("b.w.example", 80, get("B.W.Example.:80", "/y")); err != nil || !strings.Contains(out, "/y ]") {
		t.Errorf("%q %v", out, err)
	}
	// A chunked body, a kept connection, a body with a length.
	out, err := g.say("a.example", 80, "POST /1 HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n"+
		"abc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n"+
		"POST /2 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\n\r\nbody"+
		"GET http://a.example/3 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
	if err != nil || !strings.Contains(out, "/1 abcde]") || !strings.Contains(out, "/2 body]") ||
		!strings.Contains(out, "/3 ]") {
		t.Errorf("%q %v", out, err)
	}
}

// Every one of these is refused before a byte of it reaches a server.
func TestForwardRefuses(t *testing.T) {
	var reached bytes.Buffer
	var mu sync.Mutex
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				buf := make([]byte, 4096)
				for {
					n, err := c.Read(buf)
					mu.Lock()
					reached.Write(buf[:n])
					mu.Unlock()
					if err != nil {
						c.Close()
						return
					}
				}
			}()
		}
	}()
	net1 := &internet{names: map[string][]string{"good.example": {"93.184.216.34"}, "x.wild.example": {"93.184.216.34"}},
		servers: map[string]string{}}
	for _, port := range []string{"80", "443"} {
		net1.servers["93.184.216.34:"+port] = l.Addr().String()
	}
	hello := func(sni string, more func(*tls.Config)) string {
		var sent bytes.Buffer
		cfg := &tls.Config{ServerName: sni, InsecureSkipVerify: true}
		if more != nil {
			more(cfg)
		}
		_ = tls.Client(recorder{&sent}, cfg).Handshake()
		return sent.String()
	}
	for name, c := range forwardRefusesRows(hello) {
		t.Run(name, func(t *testing.T) {
			mu.Lock()
			reached.Reset()
			mu.Unlock()
			g := newGuest(t, Config{Rules: []Rule{hostRule("good.example"), hostRule("*.wild.example")},
				Upstream: net1.upstream()})
			_, err := g.say("good.example", c.port, c.say)
			if err == nil {
				t.Error("the connection ended well")
			}
			d := g.log.last()
			if d.Verdict != Denied || !strings.Contains(d.Reason, c.reason) || d.Name != "good.example" {
				t.Errorf("%+v, want reason %q", d, c.reason)
			}
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(reached.String(), "evil") {
				t.Errorf("reached the server: %q", reached.String())
			}
		})
	}
}

// privateAddresses are addresses to which no name may lead.
var privateAddresses = []string{
	"127.0.0.1", "127.9.9.9", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
	"169.254.170.2", "100.64.0.1", "0.0.0.0", "0.1.2.3", "224.0.0.1",
	"240.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.0.1", "168.63.129.16", "::1", "::", "fe80::1", "fc00::1",
	"fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
	"64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "::127.0.0.1", "fec0::1",
}

// Forbidden targets of a connection, whatever the name.
func TestForwardDenies(t *testing.T) {
	echo := echoServer(t)
	private := map[string][]string{"multi.example": {"10.0.0.1", "127.0.0.1"}}
	for i, a := range privateAddresses {
		private[fmt.Sprintf("p%d.private.example", i)] = []string{a}
	}
	net1 := &internet{names: maps.Clone(private), servers: map[string]string{}}
	for _, list := range private {
		for _, a := range list {
			for _, port := range []uint16{80, 443} {
				net1.servers[netip.AddrPortFrom(netip.MustParseAddr(a).Unmap(), port).String()] = echo
			}
		}
	}
	net1.names["ok.example"] = []string{"93.184.216.34"}
	net1.servers["93.184.216.34:80"] = echo
	g := newGuest(t, Config{Upstream: net1.upstream(), Limits: Limits{NewPerSecond: 1000, DNSPerSecond: 1000},
		Rules: []Rule{
			hostRule("*.private.example"), hostRule("multi.example"), hostRule("ok.example"),
			{Text: "net 10.9.9.9", Addr: netip.MustParseAddr("10.9.9.9")},
			{Text: "tcp 127.0.0.1:5432", Addr: netip.MustParseAddr("127.0.0.1"), Port: 5432, Raw: true}}})
	for name := range private {
		for _, port := range []uint16{80, 443} {
			if _, err := g.dial(name, port); err == nil {
				t.Errorf("%s:%d connected", name, port)
			}
			if d := g.log.last(); d.Verdict != Denied || !strings.Contains(d.Reason, "not public") {
				t.Errorf("%s %v: %+v", name, private[name], d)
			}
		}
	}
	for what, c := range map[string]struct {
		addr   string
		port   uint16
		reason string
	}{
		"an address that nobody named":     {"93.184.216.34", 80, noRule},
		"DNS over TLS to an address":       {"1.1.1.1", 853, noRule},
		"DNS over HTTPS to an address":     {"1.1.1.1", 443, noRule},
		"a private address that is named":  {"10.9.9.9", 80, "not public"},
		"a synthetic address of no name":   {"198.18.200.200", 80, "no name has this address"},
		"the gateway's DNS by TCP":         {"10.0.2.2", 53, noRule},
		"the gateway's control port":       {"10.0.2.2", 7001, noRule},
		"the gateway's HTTP":               {"10.0.2.2", 80, noRule},
		"the loopback's other port":        {"10.0.2.2", 5433, noRule},
		"the loopback's port elsewhere":    {"93.184.216.34", 5432, noRule},
		"metadata":                         {"169.254.169.254", 80, noRule},
		"the network's broadcast":          {"10.0.2.255", 80, noRule},
		"the guest itself, by its address": {"10.0.2.3", 80, noRule},
		"no address":                       {"0.0.0.0", 80, noRule},
	} {
		begin := time.Now()
		_, err := g.dialAddr(netip.MustParseAddr(c.addr), c.port)
		if err == nil {
			t.Errorf("%s: connected", what)
		}
		if what == "no address" {
			continue // the guest's own stack refuses it
		}
		if d := g.log.last(); d.Verdict != Denied || !strings.Contains(d.Reason, c.reason) || d.Port != c.port {
			t.Errorf("%s: %+v", what, d)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("%s: refused after %s", what, took)
		}
	}
	// A port outside the name's rule.
	if _, err := g.dial("ok.example", 8080); err == nil {
		t.Error("connected to another port")
	}
	if d := g.log.last(); d.Reason != "no rule allows this port" {
		t.Errorf("%+v", d)
	}
	for _, name := range []string{"evil.example", "private.example", "example", "ok.example.evil.example", "xok.example",
		"ok-example"} {
		if addr, code := g.lookup(name); addr.IsValid() || code != dnsmessage.RCodeNameError {
			t.Errorf("%s: %v %v", name, addr, code)
		}
	}
}

// An answer that changes between the check and the dial: there is one lookup, and its result is dialled.
func TestForwardRebinding(t *testing.T) {
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"rebind.example": {"93.184.216.34"}},
		rebind:  map[string][]string{"rebind.example": {"127.0.0.1"}},
		servers: map[string]string{"93.184.216.34:80": echo, "127.0.0.1:80": echo}}
	g := newGuest(t, Config{Rules: []Rule{hostRule("rebind.example")}, Upstream: net1.upstream()})
	get := "GET / HTTP/1.1\r\nHost: rebind.example\r\n\r\n"
	c, err := g.dial("rebind.example", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, get); err != nil {
		t.Fatal(err)
	}
	if _, err := g.dial("rebind.example", 80); err == nil {
		t.Error("the second one connected")
	}
	if net1.dialled[0] != "93.184.216.34:80" || len(net1.dialled) != 1 {
		t.Errorf("dialled %v", net1.dialled)
	}
}

func TestForwardRaw(t *testing.T) {
	echo := echoServer(t)
	port := netip.MustParseAddrPort(echo).Port()
	net1 := &internet{names: map[string][]string{"db.internal": {"10.0.0.5"}}, servers: map[string]string{
		"10.0.0.5:5432": echo, "127.0.0.1:" + fmt.Sprint(port): echo, "10.7.7.7:25": echo, "[::1]:" + fmt.Sprint(port): echo}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Rules: []Rule{
		{Text: "a", Host: "db.internal", Port: 5432, Raw: true}, {Text: "b", Host: "localhost", Port: port, Raw: true},
		{Text: "c", Addr: netip.MustParseAddr("10.7.7.7"), Port: 25, Raw: true}}})
	for _, c := range []struct {
		name string
		port uint16
	}{{"db.internal", 5432}, {"10.0.2.2", port}, {"10.7.7.7", 25}} {
		conn, err := g.dial(c.name, c.port)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if _, err := io.WriteString(conn, "anything at all"); err != nil {
			t.Error(err)
		}
		_ = conn.(*gonet.TCPConn).CloseWrite() // half-close passes
		if all, err := io.ReadAll(conn); err != nil || string(all) != "anything at all" {
			t.Errorf("%s: %q %v", c.name, all, err)
		}
		conn.Close()
	}
	if _, err := g.dial("db.internal", 80); err == nil {
		t.Error("another port of the same host connected")
	}
}

// The guest sees the same as upstream: refusal, no answer, reset. Our answer to the guest's handshake waits for it.
func TestForwardFailures(t *testing.T) {
	resetting, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resetting.Close() })
	go func() {
		for {
			c, err := resetting.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}()
	net1 := &internet{names: map[string][]string{"refused.example": {"93.184.216.1"}, "silent.example": {"93.184.216.2"},
		"reset.example": {"93.184.216.3"}, "empty.example": {}},
		servers: map[string]string{"93.184.216.2:99": "silent", "93.184.216.3:99": resetting.Addr().String()}}
	var rules []Rule
	for name := range net1.names {
		rules = append(rules, Rule{Text: name, Host: name, Port: 99, Raw: true})
	}
	rules = append(rules, Rule{Text: "gone", Host: "gone.example", Port: 99, Raw: true})
	g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream()})
	for name, reason := range map[string]string{"refused.example": "connection refused",
		"gone.example": "the name can't be resolved", "empty.example": "no address"} {
		if _, err := g.dial(name, 99); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", name, err)
		}
		if d := g.log.last(); !strings.Contains(d.Reason, reason) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if _, err := g.dial("silent.example", 99); err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("no answer became %v", err)
	}
	if _, err := g.say("reset.example", 99, "x"); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("a reset became %v", err)
	}
}

// WebSocket: after an upgrade that the server accepts, all data to that host passes. A rejected upgrade changes
// nothing.
func TestForwardUpgrade(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	agree := true
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4096)
				n, _ := c.Read(buf)
				if !bytes.Contains(buf[:n], []byte("websocket")) {
					return
				}
				if agree {
					fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
				} else {
					fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
				n, _ = c.Read(buf)
				fmt.Fprintf(c, "got %s", buf[:n])
			}()
		}
	}()
	net1 := &internet{names: map[string][]string{"ws.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:80": l.Addr().String()}}
	g := newGuest(t, Config{Rules: []Rule{hostRule("ws.example")}, Upstream: net1.upstream()})
	ask := "GET / HTTP/1.1\r\nHost: ws.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"
	if out, err := g.say("ws.example", 80, ask+"\x81\x05hello"); err != nil ||
		!strings.HasSuffix(out, "got \x81\x05hello") {
		t.Errorf("%q %v", out, err)
	}
	g.log.last()
	agree = false
	d := g.decision(func() {
		if out, err := g.say("ws.example", 80, ask+"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"); err == nil ||
			strings.Contains(out, "evil") {
			t.Errorf("%q %v", out, err)
		}
	})
	if d.Verdict != Denied || d.Reason != "HTTP for evil.example" {
		t.Errorf("%+v", d)
	}
}

func udpPacket(body []byte) []byte {
	return append([]byte{0x10, 0, 0, 53, byte((8 + len(body)) >> 8), byte(8 + len(body)), 0, 0}, body...)
}

func TestProxy(t *testing.T) {
	echo := echoServer(t)
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.Host+" "+r.Header.Get("Proxy-Authorization"))
		if r.Host == "no.example:99" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		up, err := net.Dial("tcp", echo)
		if err != nil {
			return
		}
		w.WriteHeader(http.StatusOK)
		c, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(up, buffered); _ = up.(*net.TCPConn).CloseWrite() }()
		_, _ = io.Copy(c, up)
		c.Close()
	}))
	defer proxy.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword("me", "secret")
	up := (&internet{}).upstream()
	up.Proxy = func(string, uint16) *url.URL { return at }
	g := newGuest(t, Config{Upstream: up, Rules: []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true},
		{Text: "n", Host: "no.example", Port: 99, Raw: true}, {Text: "p", Addr: netip.MustParseAddr("10.0.0.1"), Port: 99}}})
	c, err := g.dial("e.example", 99)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "hi")
	_ = c.(*gonet.TCPConn).CloseWrite()
	if all, err := io.ReadAll(c); err != nil || string(all) != "hi" {
		t.Errorf("%q %v", all, err)
	}
	if d := g.log.last(); d.Dialled != "proxy "+at.Host {
		t.Errorf("%+v", d)
	}
	if asked[0] != "CONNECT e.example:99 Basic bWU6c2VjcmV0" {
		t.Errorf("%v", asked)
	}
	if _, err := g.dial("no.example", 99); err == nil {
		t.Error("connected against the proxy's will")
	}
	if d := g.log.last(); !strings.Contains(d.Reason, "403") || strings.Contains(d.Reason, "secret") {
		t.Errorf("%+v", d)
	}
	if _, err := g.dial("10.0.0.1", 99); err == nil || len(asked) != 2 {
		t.Errorf("a private address went to the proxy: %v %v", err, asked)
	}
}

func TestCapture(t *testing.T) {
	var file bytes.Buffer
	g := newGuest(t, Config{Capture: NewCapture(&file)})
	g.lookup("x.example")
	g.n.Close()
	b := file.Bytes()
	if len(b) < 24+16+14 || !bytes.Equal(b[:4], []byte{0xa1, 0xb2, 0xc3, 0xd4}) {
		t.Fatalf("%x", b)
	}
	frames := 0
	for b = b[24:]; len(b) > 0; frames++ {
		n := int(b[11]) | int(b[10])<<8
		b = b[16+n:]
	}
	if frames < 2 {
		t.Errorf("%d frames", frames)
	}
}
