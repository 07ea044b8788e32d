package netstack

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/publicaddr"
	"github.com/unitask/unitask/internal/testwait"
)

// decision runs do and returns the TCP decision that comes of it.
func (g *guestOS) decision(do func()) Decision {
	g.t.Helper()
	count := func() (n int, last Decision) {
		g.log.mu.Lock()
		defer g.log.mu.Unlock()
		for _, d := range g.log.list {
			if d.Proto == "tcp" {
				n, last = n+1, d
			}
		}
		return n, last
	}
	before, _ := count()
	do()
	var last Decision
	testwait.Until(g.t, "a decision is logged", func() bool {
		n, d := count()
		last = d
		return n > before
	})
	return last
}

// saw is what a row reports of a decision.
func saw(d Decision) string {
	switch {
	case d.Verdict == Allowed:
		return "passed"
	case d.BytesUp == 0 && d.BytesDown == 0:
		return "refused before a byte"
	}
	return "refused"
}

// scriptedServer is a server that says greeting at once, and answer after what it
// receives first; it keeps all that it receives.
type scriptedServer struct {
	addr string
	mu   sync.Mutex
	got  bytes.Buffer
}

func (s *scriptedServer) received() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

func newScripted(t *testing.T, greeting, answer string) *scriptedServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scriptedServer{addr: l.Addr().String()}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer c.Close()
				_, _ = io.WriteString(c, greeting)
				buf := make([]byte, 64<<10)
				for first := true; ; first = false {
					n, err := c.Read(buf)
					s.mu.Lock()
					s.got.Write(buf[:n])
					s.mu.Unlock()
					if err != nil {
						return
					}
					if first {
						_, _ = io.WriteString(c, answer)
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); group.Wait() })
	return s
}

const (
	refusedAtOnce = "refused before a byte"
	refused       = "refused"
	passed        = "passed"
)

// The Host field and the request line, on a port that only the rule knows.
func TestAttackHTTPHeads(t *testing.T) {
	server := newScripted(t, "", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	net1 := &internet{names: map[string][]string{"good.example": {"93.184.216.34"}}, servers: map[string]string{"93.184.216.34:8080": server.addr, "8.8.4.4:8080": server.addr}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Limits: Limits{NewPerSecond: 1000, DNSPerSecond: 1000}, Rules: []Rule{{Text: "g", Host: "good.example", Port: 8080},
		{Text: "a", Addr: netip.MustParseAddr("8.8.4.4"), Port: 8080}}})
	const good, post = "Host: good.example\r\n", "POST / HTTP/1.1\r\nHost: good.example\r\n"
	get := func(line, host string) string { return line + "\r\nHost: " + host + "\r\n\r\n" }
	host := func(h string) string { return get("GET / HTTP/1.1", h) }
	line := func(l string) string { return l + "\r\n" + good + "\r\n" }
	for _, c := range []struct{ name, say, want string }{
		{"Host: its own", host("good.example"), passed},
		{"Host: upper case, dot, port", host("GOOD.Example.:8080"), passed},
		{"Host: another", host("evil.example"), refusedAtOnce},
		{"Host: a name below", host("a.good.example"), refusedAtOnce},
		{"Host: a name that ends so", host("evilgood.example"), refusedAtOnce},
		{"Host: a name that begins so", host("good.example.evil.example"), refusedAtOnce},
		{"Host: two dots at the end", host("good.example.."), refusedAtOnce},
		{"Host: another port", host("good.example:80"), refusedAtOnce},
		{"Host: two ports", host("good.example:8080:8080"), refusedAtOnce},
		{"Host: an empty port", host("good.example:"), refusedAtOnce},
		{"Host: a port with a zero before it", host("good.example:08080"), refusedAtOnce},
		{"Host: the server's address", host("93.184.216.34"), refusedAtOnce},
		{"Host: metadata", host("169.254.169.254"), refusedAtOnce},
		{"Host: metadata as a number", host("2852039166"), refusedAtOnce},
		{"Host: loopback, short", host("127.1"), refusedAtOnce},
		{"Host: IPv6", host("[::1]"), refusedAtOnce},
		{"Host: IPv6 with a zone", host("[fe80::1%25eth0]"), refusedAtOnce},
		{"Host: a bracket that closes nothing", host("good.example]"), refusedAtOnce},
		{"Host: empty", host(""), refusedAtOnce},
		{"Host: none", "GET / HTTP/1.1\r\nX: good.example\r\n\r\n", refusedAtOnce},
		{"Host: none, HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", refusedAtOnce},
		{"Host: twice", "GET / HTTP/1.1\r\n" + good + "Host: evil.example\r\n\r\n", refusedAtOnce},
		{"Host: twice the same", "GET / HTTP/1.1\r\n" + good + good + "\r\n", refusedAtOnce},
		{"Host: a list", host("good.example, evil.example"), refusedAtOnce},
		{"Host: a user", host("good.example@evil.example"), refusedAtOnce},
		{"Host: a path", host("good.example/evil.example"), refusedAtOnce},
		{"Host: a NUL", host("good.example\x00evil.example"), refusedAtOnce},
		{"Host: a tab inside", host("good.example\tevil.example"), refusedAtOnce},
		{"Host: a space before the colon", "GET / HTTP/1.1\r\nHost : good.example\r\n\r\n", refusedAtOnce},
		{"Host: folded", "GET / HTTP/1.1\r\nHost: good.example\r\n evil.example\r\n\r\n", refusedAtOnce},
		{"Host: behind a space", "GET / HTTP/1.1\r\n Host: evil.example\r\n" + good + "\r\n", refusedAtOnce},
		{"Host: behind a lone LF", "GET / HTTP/1.1\r\nX: 1\nHost: evil.example\r\n" + good + "\r\n", refusedAtOnce},
		{"Host: behind a lone CR", "GET / HTTP/1.1\r\nX: 1\rHost: evil.example\r\n" + good + "\r\n", refusedAtOnce},
		{"Host: not ASCII", host("gооd.example"), refusedAtOnce},
		{"Host: percent-encoded", host("good%2eexample"), refusedAtOnce},

		{"request line: a tab for a space", line("GET\t/ HTTP/1.1"), refusedAtOnce},
		{"request line: a tab in the target", line("GET /\thttp://evil.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: a tab before the version", line("GET /\t HTTP/1.1"), refusedAtOnce},
		{"request line: a no-break space in the target", line("GET /\u00a0x HTTP/1.1"), refusedAtOnce},
		{"request line: the byte A0 in the target", line("GET /\xa0x HTTP/1.1"), refusedAtOnce},
		{"request line: two spaces", line("GET  / HTTP/1.1"), refusedAtOnce},
		{"request line: a space in the target", line("GET /a b HTTP/1.1"), refusedAtOnce},
		{"request line: a space before it", line(" GET / HTTP/1.1"), refusedAtOnce},
		{"request line: an empty line before it", "\r\n" + line("GET / HTTP/1.1"), refusedAtOnce},
		{"request line: no target", line("GET HTTP/1.1"), refusedAtOnce},
		{"request line: no version", line("GET /"), refusedAtOnce},
		{"request line: HTTP/1.2", line("GET / HTTP/1.2"), refusedAtOnce},
		{"request line: HTTP/2.0", line("GET / HTTP/2.0"), refusedAtOnce},
		{"request line: http/1.1", line("GET / http/1.1"), refusedAtOnce},
		{"request line: HTTP/2 by prior knowledge", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", refusedAtOnce},
		{"request line: a method with a colon", line("GET: / HTTP/1.1"), refusedAtOnce},
		{"request line: CONNECT", line("CONNECT good.example:8080 HTTP/1.1"), refusedAtOnce},
		{"request line: connect", line("connect good.example:8080 HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, its own", line("GET http://good.example/ HTTP/1.1"), passed},
		{"request line: absolute form, another", line("GET http://evil.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, a user", line("GET http://good.example@evil.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, a backslash", line(`GET http://evil.example\@good.example/ HTTP/1.1`), refusedAtOnce},
		{"request line: absolute form, another scheme", line("GET gopher://good.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, no slashes", line("GET http:good.example HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, another port", line("GET http://good.example:80/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, https", line("GET https://good.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, a fragment before a user", line("GET http://good.example#@evil.example/ HTTP/1.1"), passed},
		{"request line: absolute form, a dot at the end", line("GET http://good.example./ HTTP/1.1"), refusedAtOnce},
		{"request line: RTSP", line("OPTIONS rtsp://good.example/ RTSP/1.0"), refusedAtOnce},
		{"request line: ICY", line("GET / ICY/1.0"), refusedAtOnce},
		{"request line: authority form", line("GET evil.example:80 HTTP/1.1"), refusedAtOnce},
		{"request line: a path of two slashes is a path", line("GET //evil.example/ HTTP/1.1"), passed},

		{"a second request for another", host("good.example") + host("evil.example"), refused},
		{"another request behind a body", post + "Content-Length: 2\r\n\r\nok" + host("evil.example"), refused},
		{"another request in a body is a body", post + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(host("evil.example"))) + host("evil.example"), passed},
		{"length and chunks", post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", refusedAtOnce},
		{"two lengths", post + "Content-Length: 4\r\nContent-Length: 5\r\n\r\n", refusedAtOnce},
		{"a length with a sign", post + "Content-Length: +4\r\n\r\n", refusedAtOnce},
		{"an encoding that only some read as chunked", post + "Transfer-Encoding: \x0bchunked\r\n\r\n", refusedAtOnce},
		{"chunked, and more", post + "Transfer-Encoding: chunked, identity\r\n\r\n", refusedAtOnce},
		{"chunks in HTTP/1.0", "POST / HTTP/1.0\r\n" + good + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", refusedAtOnce},
		{"chunked twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", refusedAtOnce},
		{"an empty length", post + "Content-Length:\r\n\r\n", refusedAtOnce},
		{"a length in hexadecimal", post + "Content-Length: 0x4\r\n\r\n", refusedAtOnce},
		{"two lengths in one field", post + "Content-Length: 4, 4\r\n\r\n", refusedAtOnce},
		{"a length beyond 64 bits", post + "Content-Length: 18446744073709551620\r\n\r\n", refusedAtOnce},
		{"a chunk's size with 0x", post + "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", refused},
		{"a chunk's size with a sign", post + "Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n", refused},
		{"a chunk's size with a blank before it", post + "Transfer-Encoding: chunked\r\n\r\n 1\r\na\r\n0\r\n\r\n", refused},
		{"a chunk's size beyond 64 bits", post + "Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\na\r\n0\r\n\r\n", refused},
		{"a lone CR in a chunk's extension", post + "Transfer-Encoding: chunked\r\n\r\n1;a\rb\r\na\r\n0\r\n\r\n", refused},
		{"a length in a trailer", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 99\r\n\r\n", refused},
		{"a chunk longer than its size", post + "Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", refused},
		{"a chunk's line that ends in LF", post + "Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", refused},
		{"Host in a trailer", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nHost: evil.example\r\n\r\n", refused},
		{"a trailer that is no field", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nGET http://evil.example/ HTTP/1.1\r\n\r\n", refused},
		{"an upgrade to HTTP/2 in the clear", "GET / HTTP/1.1\r\n" + good + "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", refusedAtOnce},
		{"an upgrade behind another request", host("good.example") + "GET / HTTP/1.1\r\n" + good + "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", refused},
		{"a head of 40 KiB", "GET / HTTP/1.1\r\n" + good + strings.Repeat("X: evil.example\r\n", 2500) + "\r\n", refusedAtOnce},
		{"a binary protocol", "\x00\x00\x00\x08\x04\xd2\x16\x2f", refusedAtOnce},
		{"SMTP", "EHLO good.example\r\nMAIL FROM:<a@good.example>\r\n", refusedAtOnce},
		{"FTP", "USER anonymous\r\nPASS x\r\n", refusedAtOnce},
		{"memcached", "set x 0 0 1\r\na\r\n", refusedAtOnce},
		{"a field's name in full width", "GET / HTTP/1.1\r\n\uff28ost: evil.example\r\n" + good + "\r\n", refusedAtOnce},
		{"SSH", "SSH-2.0-OpenSSH_9.2\r\n", refusedAtOnce},
		{"Redis", "*1\r\n$4\r\nPING\r\n", refusedAtOnce},
	} {
		d := g.decision(func() { _ = g.sayAndEnd("good.example", 8080, c.say) })
		attack.Check(t, "HTTP: "+c.name, c.want, saw(d))
		if got := server.received(); c.want == refused && strings.Contains(got, "Host: evil.example") {
			t.Errorf("%s: reached the server: %q", c.name, got)
		}
		if (c.want == passed) != (d.Reason == "") {
			t.Errorf("%s: %+v", c.name, d)
		}
		server.mu.Lock()
		server.got.Reset()
		server.mu.Unlock()
	}
	for _, c := range []struct{ name, host, want string }{
		{"its own address", "8.8.4.4:8080", passed}, {"another address", "10.0.0.1", refusedAtOnce}, {"a name", "good.example", refusedAtOnce},
		{"its own address, mapped", "[::ffff:8.8.4.4]", passed}, {"its own address, mapped, with a zone", "[::ffff:8.8.4.4%eth0]", refusedAtOnce},
	} {
		d := g.decision(func() { _ = g.sayAndEnd("8.8.4.4", 8080, host(c.host)) })
		attack.Check(t, "HTTP: Host on a connection to an address: "+c.name, c.want, saw(d))
	}
}

// sayAndEnd sends text, ends its own side, and waits for the other's end.
func (g *guestOS) sayAndEnd(name string, port uint16, text string) []byte {
	c, err := g.dial(name, port)
	if err != nil {
		return nil
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(guestPatience))
	_, _ = io.WriteString(c, text)
	_ = c.(*gonet.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(c)
	return answer
}

// clientHello is a handshake message with the given extensions, well formed but for
// what they hold (RFC 8446, 4.1.2).
func clientHello(extensions ...[]byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 4, 0x13, 0x01, 0xc0, 0x2f, 1, 0)
	all := bytes.Join(extensions, nil)
	body = append(binary.BigEndian.AppendUint16(body, uint16(len(all))), all...)
	return append([]byte{1, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// serverNames is the extension (RFC 6066, 3).
func serverNames(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(binary.BigEndian.AppendUint16(append(list, 0), uint16(len(n))), n...)
	}
	ext := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(list)+2))
	return append(binary.BigEndian.AppendUint16(ext, uint16(len(list))), list...)
}

// records puts a handshake message into records of n bytes each.
func records(message []byte, n int) string {
	var out []byte
	for len(message) > 0 {
		k := min(n, len(message))
		out = append(append(out, tlsRecord, 3, 1, byte(k>>8), byte(k)), message[:k]...)
		message = message[k:]
	}
	return string(out)
}

func TestAttackTLSHellos(t *testing.T) {
	server := newScripted(t, "", "\x15\x03\x03\x00\x02\x02\x28") // an alert, as servers answer what they don't like
	net1 := &internet{names: map[string][]string{"good.example": {"93.184.216.34"}}, servers: map[string]string{"93.184.216.34:8443": server.addr}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Limits: Limits{NewPerSecond: 1000, DNSPerSecond: 1000}, Rules: []Rule{{Text: "g", Host: "good.example", Port: 8443}}})
	one := func(extensions ...[]byte) string { return records(clientHello(extensions...), 1<<14) }
	good := clientHello(serverNames("good.example"))
	var ech bytes.Buffer
	cfg := &tls.Config{ServerName: "good.example"}
	withECH(cfg)
	_ = tls.Client(recorder{&ech}, cfg).Handshake()
	padding := append([]byte{0, 21, 0xf0, 0}, make([]byte, 0xf000)...)
	for _, c := range []struct{ name, say, want string }{
		{"for its name", records(good, 1<<14), passed},
		{"in upper case", one(serverNames("GOOD.EXAMPLE")), passed},
		{"in records of 7 bytes", records(good, 7), passed},
		{"in records of one byte", records(good, 1), passed},
		{"for another name", one(serverNames("evil.example")), refusedAtOnce},
		{"for another name, in records of one byte", records(clientHello(serverNames("evil.example")), 1), refusedAtOnce},
		{"for a name below", one(serverNames("a.good.example")), refusedAtOnce},
		{"without a name", one(), refusedAtOnce},
		{"for an empty name", one(serverNames("")), refusedAtOnce},
		{"for the server's address", one(serverNames("93.184.216.34")), refusedAtOnce},
		{"for metadata", one(serverNames("169.254.169.254")), refusedAtOnce},
		{"for an IPv6 address", one(serverNames("::1")), refusedAtOnce},
		{"for a name with a dot at its end", one(serverNames("good.example.")), refusedAtOnce},
		{"for a name with a NUL", one(serverNames("good.example\x00.evil.example")), refusedAtOnce},
		{"for a name with a newline", one(serverNames("good.example\r\nevil.example")), refusedAtOnce},
		{"for two names", one(serverNames("good.example", "evil.example")), refusedAtOnce},
		{"with two lists of names", one(serverNames("good.example"), serverNames("evil.example")), refusedAtOnce},
		{"encrypted", ech.String(), refusedAtOnce},
		{"over 32 KiB", one(serverNames("good.example"), padding), refusedAtOnce},
		{"with extensions that lie about their length", string(append([]byte(records(good, 1<<14))[:len(records(good, 1<<14))-1], 'x', 'x')), refusedAtOnce},
		{"cut", records(good, 1<<14)[:40], refusedAtOnce},
		{"in SSL 2's form", "\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + strings.Repeat("\x00", 40), refusedAtOnce},
		{"that is an alert", "\x15\x03\x01\x00\x02\x01\x00", refusedAtOnce},
		{"that is application data", "\x17\x03\x03\x00\x05hello", refusedAtOnce},
		{"that is a server's", records(append([]byte{2, 0, 0, 38}, make([]byte, 38)...), 1<<14), refusedAtOnce},
	} {
		d := g.decision(func() { _ = g.sayAndEnd("good.example", 8443, c.say) })
		attack.Check(t, "TLS: a hello "+c.name, c.want, saw(d))
		if c.want != passed && server.received() != "" {
			t.Errorf("%s: reached the server: %q", c.name, server.received())
		}
		server.mu.Lock()
		server.got.Reset()
		server.mu.Unlock()
	}
}

// Protocols in which the server speaks first, or that answer HTTP and TLS with their
// own words, are --allow-tcp's, on whatever port.
func TestAttackOtherProtocols(t *testing.T) {
	get := "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n"
	for _, c := range []struct {
		name             string
		port             uint16
		greeting, answer string
		say              string
		want             string
		down             int
	}{
		{"SMTP on 25", 25, "220 mail.example ESMTP\r\n", "", "", "the server spoke first", 0},
		{"SMTP on 443", 443, "220 mail.example ESMTP\r\n", "", "", "the server spoke first", 0},
		{"SSH on 22", 22, "SSH-2.0-OpenSSH_9.2\r\n", "", "", "the server spoke first", 0},
		{"FTP on 80", 80, "220 ftp\r\n", "", "", "the server spoke first", 0},
		{"MySQL on 3306", 3306, "J\x00\x00\x00\x0a8.0.36", "", "", "the server spoke first", 0},
		{"an answer before the request", 80, "HTTP/1.1 200 OK\r\n\r\n", "", "", "the server spoke first", 0},
		{"HTTP to a server that says 220", 25, "", "220 mail.example ESMTP\r\n", get, `the server answers "220 mail.exa"`, 0},
		{"HTTP to a server that says SSH", 22, "", "SSH-2.0-OpenSSH_9.2\r\n", get, `the server answers "SSH-2.0-Open"`, 0},
		{"HTTP to a server that says HTTP/0.9", 80, "", "<html>", get, `the server answers "<html>"`, 0},
		{"HTTP to a server that says TLS", 80, "", "\x15\x03\x01\x00\x02\x02\x46", get, `the server answers "\x15\x03\x01\x00\x02\x02F"`, 0},
		{"TLS to a server that says HTTP", 443, "", "HTTP/1.1 400 Bad Request\r\n\r\n", records(clientHello(serverNames("good.example")), 1<<14), `the server answers "HTTP/1.1 400"`, 0},
		{"TLS to a server that says SSH", 443, "", "SSH-2.0-OpenSSH_9.2\r\n", records(clientHello(serverNames("good.example")), 1<<14), `the server answers "SSH-2.0-Open"`, 0},
		{"HTTP to a server that says HTTP", 25, "", "HTTP/1.1 204 No Content\r\n\r\n", get, "", 27},
	} {
		server := newScripted(t, c.greeting, c.answer)
		net1 := &internet{names: map[string][]string{"good.example": {"93.184.216.34"}}, servers: map[string]string{fmt.Sprintf("93.184.216.34:%d", c.port): server.addr}}
		g := newGuest(t, Config{Upstream: net1.upstream(), Rules: []Rule{{Text: "g", Host: "good.example", Port: c.port}}})
		var heard []byte
		d := g.decision(func() {
			conn, err := g.dial("good.example", c.port)
			if err != nil { // the reset came with the handshake
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(guestPatience))
			_, _ = io.WriteString(conn, c.say)
			if c.down > 0 {
				heard = make([]byte, c.down)
				_, _ = io.ReadFull(conn, heard)
				return
			}
			heard, _ = io.ReadAll(conn)
		})
		want := c.want
		if want != "" {
			want += ": this is not HTTP or TLS: --allow-tcp allows other protocols"
		}
		attack.Check(t, "another protocol: "+c.name, want, d.Reason)
		if len(heard) != c.down || int(d.BytesDown) != c.down || (want == "") != (d.Verdict == Allowed) {
			t.Errorf("%s: the guest heard %q; %+v", c.name, heard, d)
		}
		if c.say == "" && server.received() != "" {
			t.Errorf("%s: reached the server: %q", c.name, server.received())
		}
	}
	// The same rule with --allow-tcp.
	server := newScripted(t, "220 mail.example ESMTP\r\n", "")
	net1 := &internet{names: map[string][]string{"good.example": {"93.184.216.34"}}, servers: map[string]string{"93.184.216.34:25": server.addr}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Rules: []Rule{{Text: "g", Host: "good.example", Port: 25, Raw: true}}})
	if heard := g.sayAndEnd("good.example", 25, "QUIT\r\n"); string(heard) != "220 mail.example ESMTP\r\n" {
		t.Errorf("a raw rule: %q", heard)
	}
}

// Names that lead inside, and texts that some resolver or proxy takes for an address,
// with and without a proxy, against every rule that could allow them.
func TestAttackNamesToPrivate(t *testing.T) {
	local := []netip.Prefix{netip.MustParsePrefix("93.184.216.40/29"), netip.MustParsePrefix("192.168.7.9/24"), netip.MustParsePrefix("2600:1:2:3::9/64"), netip.MustParsePrefix("8.8.4.4/0")}
	routed := netip.MustParsePrefix("93.184.217.0/24") // by a route of its own, and no interface's
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
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil // what a lenient resolver makes of it
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
		return "dialled " + strings.Replace(dialled, proxy.addr, "PROXY", 1)
	}
	anything := &Rule{Text: "any", Any: true}

	// As a name: what looks like an address is none, whoever would resolve it.
	for _, name := range []string{"169.254.169.254", "127.0.0.1", "127.1", "127.0.1", "0x7f000001", "0x7f.1", "0X7F.0.0.1", "2130706433", "017700000001", "0177.0.0.1", "0",
		"127.0.0.1.", "127.1.", "a.b.127", "1.0x", "example.0x10", "169.254.169.254.", "::1", "fe80::1%eth0", "::ffff:127.0.0.1", "[::1]", "127。0。0。1", "127.0.0.1:80", "localhost/", "a..b"} {
		for _, with := range []bool{false, true} {
			proxied = ""
			way := ""
			if with {
				way = ", with a proxy"
			}
			attack.Check(t, "a name: "+name+way, "no name", try(outside(with), target{name: name, port: 80, addr: netip.Addr{}}, anything))
			if proxied != "" {
				t.Errorf("the proxy was asked for %q", proxied)
			}
		}
		if name, ok := normalName(name); ok && name != "localhost" {
			t.Errorf("%q is a name to DNS, SNI and Host", name)
		}
	}
	// As an answer of the resolver, and as an address that a rule names.
	for _, c := range []struct{ name, addr, want string }{
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
	} {
		addr := netip.MustParseAddr(c.addr)
		want := c.want
		if want == "dialled" {
			want += " " + netip.AddrPortFrom(addr, 80).String()
		}
		resolved["n.example"] = c.addr
		attack.Check(t, "a name that leads to: "+c.name, want, try(outside(false), target{name: "n.example", port: 80}, &Rule{Text: "n", Host: "n.example"}))
		attack.Check(t, "an address that is named: "+c.name, want, try(outside(false), target{addr: addr, port: 80}, &Rule{Text: "a", Addr: addr}))
		if c.want == "dialled" {
			want = "dialled proxy PROXY"
		}
		attack.Check(t, "an address that is named, with a proxy: "+c.name, want, try(outside(true), target{addr: addr, port: 80}, &Rule{Text: "a", Addr: addr}))
		// --allow-tcp may name every one of them.
		raw := &Rule{Text: "r", Addr: addr, Port: 80, Raw: true}
		if got := try(outside(false), target{addr: addr, port: 80}, raw); got != "dialled "+netip.AddrPortFrom(addr.Unmap(), 80).String() {
			t.Errorf("%s by a raw rule: %s", c.name, got)
		}
	}
	broken := outside(false)
	broken.Local = func() ([]netip.Prefix, error) { return nil, errors.New("no netlink") }
	resolved["n.example"] = "93.184.216.34"
	attack.Check(t, "a host that can't say what its addresses are", "no netlink", try(broken, target{name: "n.example", port: 80}, &Rule{Host: "n.example"}))
}

// The socket itself is checked too: an address that became the host's own after it
// was resolved and checked is not connected to.
func TestAttackCheckedAtTheSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := netip.MustParseAddrPort(l.Addr().String())
	var checked []netip.Addr
	conn, err := Upstream{}.connect(t.Context(), to, func(a netip.Addr) error { checked = append(checked, a); return publicaddr.ErrOwn })
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
	// Whatever this machine's addresses are, they are all closed.
	for _, p := range local {
		if err := publicaddr.Check(p.Addr(), local); err == nil {
			t.Errorf("%s is open", p)
		}
	}
	if len(local) == 0 {
		t.Error("this host has no address")
	}
}

// Search domains of the host are never applied: the resolver is asked for the name
// itself, and for nothing else.
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
	good := q("good.example.", dnsmessage.TypeA)
	chaos := good
	chaos.Class = dnsmessage.ClassCHAOS
	plain := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}}
	header := func(edit func(*dnsmessage.Header)) dnsmessage.Message {
		m := plain
		edit(&m.Header)
		return m
	}
	long := strings.Repeat("a", 63)
	for _, c := range []struct {
		name string
		body []byte
		want string
	}{
		{"an allowed name", question(plain, good), "198.18.0.1"},
		{"an allowed name in upper case", question(plain, q("GOOD.example.", dnsmessage.TypeA)), "198.18.0.1"},
		{"IPv6 of an allowed name", question(plain, q("good.example.", dnsmessage.TypeAAAA)), "RCodeSuccess, no answer"},
		{"TXT of an allowed name", question(plain, q("good.example.", dnsmessage.TypeTXT)), "RCodeSuccess, no answer"},
		{"any type of an allowed name", question(plain, q("good.example.", dnsmessage.TypeALL)), "RCodeSuccess, no answer"},
		{"a transfer of a zone", question(plain, q("good.example.", dnsmessage.Type(252))), "RCodeSuccess, no answer"},
		{"an allowed name in another class", question(plain, chaos), "RCodeNameError, no answer"},
		{"a name that nobody allowed", question(plain, q("evil.example.", dnsmessage.TypeA)), "RCodeNameError, no answer"},
		{"data in labels below an allowed name", question(plain, q("c2VjcmV0.good.example.", dnsmessage.TypeA)), "RCodeNameError, no answer"},
		{"data in labels of the longest name", question(plain, q(long+"."+long+"."+long+".evil.example.", dnsmessage.TypeTXT)), "RCodeNameError, no answer"},
		{"the root", question(plain, q(".", dnsmessage.TypeNS)), "RCodeNameError, no answer"},
		{"an address as a name", question(plain, q("127.0.0.1.", dnsmessage.TypeA)), "RCodeNameError, no answer"},
		{"a number as a name", question(plain, q("2130706433.", dnsmessage.TypeA)), "RCodeNameError, no answer"},
		{"metadata by the reverse", question(plain, q("254.169.254.169.in-addr.arpa.", dnsmessage.TypePTR)), "RCodeNameError, no answer"},
		{"a label with a NUL", []byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05go\x00od\x07example\x00\x00\x01\x00\x01"), "RCodeNameError, no answer"},
		{"a label with a dot", []byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x0cgood.example\x00\x00\x01\x00\x01"), "no reply"},
		{"two questions", question(plain, good, q("evil.example.", dnsmessage.TypeA)), "no reply"},
		{"no question", question(plain), "no reply"},
		{"a response", question(header(func(h *dnsmessage.Header) { h.Response = true }), good), "no reply"},
		{"an update", question(header(func(h *dnsmessage.Header) { h.OpCode = 5 }), good), "no reply"},
		{"a notification", question(header(func(h *dnsmessage.Header) { h.OpCode = 4 }), good), "no reply"},
		{"a name that points at itself", []byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"), "no reply"},
		{"a name that points ahead", []byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\xff\x00\x01\x00\x01"), "no reply"},
		{"a label that is longer than the packet", []byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x3fgood"), "no reply"},
		{"a header alone", make([]byte, 12), "no reply"},
		{"eleven bytes", make([]byte, 11), "no reply"},
		{"over 512 bytes", append(question(plain, good), make([]byte, 512)...), "no reply"},
	} {
		answer, d := answerDNS(&filter{[]Rule{hostRule("good.example"), {Text: "any below", Host: "w.example", Wildcard: true}}}, newNames(), c.body)
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

// Frames that no honest card sends, one by one, on a network that is in use: what
// is counted, and that it goes on.
func TestAttackFrames(t *testing.T) {
	n, guest := attach(t, Config{})
	discover, err := dhcpv4.NewDiscovery(guestMAC)
	if err != nil {
		t.Fatal(err)
	}
	dhcp := func(edit func(*dhcpv4.DHCPv4)) []byte {
		m, err := dhcpv4.FromBytes(discover.ToBytes())
		if err != nil {
			t.Fatal(err)
		}
		edit(m)
		body := m.ToBytes()
		return ethernet(0x0800, packetIPv4(17, udpOf(68, 67, 8+len(body), body), nil))
	}
	kind := func(k dhcpv4.MessageType) []byte {
		return dhcp(func(m *dhcpv4.DHCPv4) { m.UpdateOption(dhcpv4.OptMessageType(k)) })
	}
	bytesTo67 := func(body []byte) []byte {
		return ethernet(0x0800, packetIPv4(17, udpOf(68, 67, 8+len(body), body), nil))
	}
	gratuitous := arp(2, [4]byte{10, 0, 2, 15})
	copy(gratuitous[14:], []byte{10, 0, 2, 2}) // "the gateway's address is at my card"
	udpTo := func(dst [4]byte, port uint16) []byte {
		return ethernet(0x0800, packetIPv4(17, udpOf(4000, port, 9, []byte("x")), func(ip header.IPv4) { ip.SetDestinationAddress(tcpip.AddrFrom4(dst)) }))
	}
	tcp := func(edit func(header.IPv4)) []byte { return ethernet(0x0800, packetIPv4(6, make([]byte, 20), edit)) }
	for _, c := range []struct {
		name  string
		frame []byte
		want  Drop
	}{
		{"no byte", nil, DropRunt},
		{"13 bytes", make([]byte, 13), DropRunt},
		{"a header alone", ethernet(0x0800, nil), DropMalformed},
		{"9216 zeros", make([]byte, maxFrame), DropSource},
		{"from another card", append(append(append([]byte{}, gatewayMAC...), 2, 2, 2, 2, 2, 2), make([]byte, 60)...), DropSource},
		{"from the gateway's own card", append(append(append([]byte{}, gatewayMAC...), gatewayMAC...), make([]byte, 60)...), DropSource},
		{"to a multicast group", append(append([]byte{0x33, 0x33, 0, 0, 0, 1}, guestMAC...), make([]byte, 60)...), DropMulticast},
		{"IPv6 router discovery", ethernet(0x86dd, make([]byte, 60)), DropIPv6},
		{"a VLAN tag", ethernet(0x8100, make([]byte, 60)), DropEtherType},
		{"LLDP", ethernet(0x88cc, make([]byte, 60)), DropEtherType},
		{"an IPv4 length that lies", tcp(func(ip header.IPv4) { ip.SetTotalLength(1500) }), DropMalformed},
		{"an IPv4 header that lies", tcp(func(ip header.IPv4) { ip[0] = 0x4f }), DropMalformed},
		{"source routing", tcp(func(ip header.IPv4) { ip[0] = 0x46 }), DropOptions},
		{"a fragment", tcp(func(ip header.IPv4) { ip.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, 0) }), DropFragment},
		{"another source address", tcp(func(ip header.IPv4) { ip.SetSourceAddress(tcpip.AddrFrom4([4]byte{10, 0, 2, 99})) }), DropSource},
		{"the gateway's source address", tcp(func(ip header.IPv4) { ip.SetSourceAddress(tcpip.AddrFrom4(GatewayAddr.As4())) }), DropSource},
		{"TCP to our loopback", tcp(func(ip header.IPv4) { ip.SetDestinationAddress(tcpip.AddrFrom4([4]byte{127, 0, 0, 1})) }), DropTarget},
		{"TCP to multicast", tcp(func(ip header.IPv4) { ip.SetDestinationAddress(tcpip.AddrFrom4([4]byte{224, 0, 0, 1})) }), DropTarget},
		{"ping", ethernet(0x0800, packetIPv4(1, make([]byte, 8), nil)), DropICMP},
		{"GRE", ethernet(0x0800, packetIPv4(47, make([]byte, 80), nil)), DropProtocol},
		{"SCTP", ethernet(0x0800, packetIPv4(132, make([]byte, 80), nil)), DropProtocol},
		{"UDP that lies about its length", ethernet(0x0800, packetIPv4(17, udpOf(1, 53, 1000, []byte("x")), nil)), DropMalformed},
		{"QUIC", udpTo([4]byte{93, 184, 216, 34}, 443), DropUDP},
		{"DNS to another resolver", udpTo([4]byte{8, 8, 8, 8}, 53), DropUDP},
		{"multicast DNS", udpTo([4]byte{224, 0, 0, 251}, 5353), DropUDP},
		{"NTP to the gateway", udpTo(GatewayAddr.As4(), 123), DropUDP},
		{"ARP: 27 bytes", ethernet(0x0806, arp(1, [4]byte{10, 0, 2, 2})[:27]), DropMalformed},
		{"ARP: a reply that moves the gateway", ethernet(0x0806, gratuitous), DropARP},
		{"ARP: an announcement", ethernet(0x0806, arp(1, [4]byte{10, 0, 2, 15})), DropARP},
		{"ARP: an operation that is not there", ethernet(0x0806, arp(9, [4]byte{10, 0, 2, 2})), DropARP},
		{"ARP: addresses of 255 bytes", ethernet(0x0806, append([]byte{0, 1, 8, 0, 255, 255}, make([]byte, 40)...)), DropMalformed},
		{"DHCP: an offer from the guest", kind(dhcpv4.MessageTypeOffer), DropDHCP},
		{"DHCP: an acknowledgement from the guest", kind(dhcpv4.MessageTypeAck), DropDHCP},
		{"DHCP: a decline", kind(dhcpv4.MessageTypeDecline), DropDHCP},
		{"DHCP: a release", kind(dhcpv4.MessageTypeRelease), DropDHCP},
		{"DHCP: for another card", dhcp(func(m *dhcpv4.DHCPv4) { m.ClientHWAddr = net.HardwareAddr{2, 2, 2, 2, 2, 2} }), DropDHCP},
		{"DHCP: a server's", dhcp(func(m *dhcpv4.DHCPv4) { m.OpCode = dhcpv4.OpcodeBootReply }), DropDHCP},
		{"DHCP: no type", dhcp(func(m *dhcpv4.DHCPv4) { delete(m.Options, 53) }), DropDHCP},
		{"DHCP: an option that lies", bytesTo67(append(discover.ToBytes()[:240], 53, 200, 1)), DropMalformed},
		{"DHCP: no cookie", bytesTo67(make([]byte, 300)), DropMalformed},
		{"DHCP: cut", bytesTo67(discover.ToBytes()[:200]), DropMalformed},
	} {
		before := n.Stats()
		sendTo(t, guest, c.frame)
		// The network goes on: it answers the next question.
		sendTo(t, guest, ethernet(0x0806, arp(1, [4]byte{10, 0, 2, 2})))
		reply := receiveFrom(t, guest)
		got := "nothing"
		if reply[12] != 8 || reply[13] != 6 {
			got = "answered"
		}
		for kind, count := range n.Stats() {
			if count > before[kind] {
				got = "dropped: " + string(kind)
			}
		}
		attack.Check(t, "frames: "+c.name, "dropped: "+string(c.want), got)
	}
}

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
	outcome := func(err error) string {
		if err != nil {
			return "refused"
		}
		return "served"
	}
	_, err = open.Read(buf)
	attack.Check(t, "after the cut: a connection that was open", "refused", outcome(err))
	_, err = g.dialAddr(synthetic.Addr().Next().Next(), 99)
	attack.Check(t, "after the cut: a name that was looked up before", "refused", outcome(err))
	_, err = g.dialAddr(GatewayAddr, 98)
	attack.Check(t, "after the cut: the host's loopback", "refused", outcome(err))
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
