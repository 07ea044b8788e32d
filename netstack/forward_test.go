package netstack

import (
	"bufio"
	"bytes"
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/unitask/unitask/internal/testwait"
)

// guestOS is a TCP/IP stack at the guest's end of a link: what a guest's kernel is,
// in a test's hands.
type guestOS struct {
	t     testing.TB
	n     *Network
	stack *stack.Stack
	log   *logged
}

type logged struct {
	mu   sync.Mutex
	list []Decision
	n    *Network
}

func (l *logged) add(d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, d)
}

// last waits for the last TCP decision of all that were taken until now.
func (l *logged) last() (last Decision) {
	testwait.Holds(guestPatience, func() bool {
		lines := l.n.log.lines
		lines.mu.Lock()
		waiting := lines.size
		lines.mu.Unlock()
		if waiting > 0 {
			return false
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, d := range slices.Backward(l.list) {
			if d.Proto == "tcp" {
				last = d
				return true
			}
		}
		return false
	})
	return last
}

func newGuest(t testing.TB, cfg Config) *guestOS {
	t.Helper()
	log, also := &logged{}, cfg.Log
	cfg.Log = func(d Decision) {
		if also != nil {
			also(d)
		}
		log.add(d)
	}
	n, conn := attach(t, cfg)
	log.n = n
	ep := channel.New(512, mtu, "")
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := s.CreateNIC(1, ep); err != nil {
		t.Fatal(err)
	}
	addr := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddrFrom4(GuestAddr.As4()).WithPrefix()}
	if err := s.AddProtocolAddress(1, addr, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		for {
			pkt := ep.ReadContext(ctx)
			if pkt == nil {
				return
			}
			var body []byte
			for _, part := range pkt.AsSlices() {
				body = append(body, part...)
			}
			pkt.DecRef()
			if _, err := conn.Write(appendFrame(nil, ethernet(0x0800, body))); err != nil {
				return
			}
		}
	})
	group.Go(func() {
		for {
			var h [4]byte
			if _, err := io.ReadFull(conn, h[:]); err != nil {
				return
			}
			frame := make([]byte, int(h[2])<<8|int(h[3]))
			if _, err := io.ReadFull(conn, frame); err != nil {
				return
			}
			pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame[14:])})
			ep.InjectInbound(ipv4.ProtocolNumber, pkt)
			pkt.DecRef()
		}
	})
	t.Cleanup(func() {
		cancel()
		conn.Close()
		group.Wait()
		s.Destroy()
	})
	return &guestOS{t, n, s, log}
}

const guestPatience = 3 * time.Second

func (g *guestOS) dialAddr(addr netip.Addr, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), guestPatience)
	defer cancel()
	return gonet.DialContextTCP(ctx, g.stack, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(addr.As4()), Port: port}, ipv4.ProtocolNumber)
}

// lookup asks the network's resolver.
func (g *guestOS) lookup(name string) (netip.Addr, dnsmessage.RCode) {
	g.t.Helper()
	c, err := gonet.DialUDP(g.stack, nil, &tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(GatewayAddr.As4()), Port: 53}, ipv4.ProtocolNumber)
	if err != nil {
		g.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(dnsQuery(name+".", dnsmessage.TypeA)); err != nil {
		g.t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(guestPatience))
	buf := make([]byte, 1500)
	k, err := c.Read(buf)
	if err != nil {
		return netip.Addr{}, dnsmessage.RCodeRefused
	}
	var m dnsmessage.Message
	if err := m.Unpack(buf[:k]); err != nil {
		g.t.Fatal(err)
	}
	if len(m.Answers) == 0 {
		return netip.Addr{}, m.RCode
	}
	return netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A), m.RCode
}

func (g *guestOS) dial(name string, port uint16) (net.Conn, error) {
	addr, err := netip.ParseAddr(name)
	if err != nil {
		var code dnsmessage.RCode
		if addr, code = g.lookup(name); !addr.IsValid() {
			return nil, errors.New(code.String())
		}
	}
	return g.dialAddr(addr, port)
}

// say opens a connection, sends text and returns all that comes back.
func (g *guestOS) say(name string, port uint16, text string) (string, error) {
	c, err := g.dial(name, port)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(guestPatience))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// internet is an upstream that a test makes: names and their addresses, and the
// local servers that stand for them. What was dialled is kept.
type internet struct {
	mu      sync.Mutex
	names   map[string][]string
	servers map[string]string // "address:port" → where it really is
	dialled []string
	lookups int
	rebind  map[string][]string // what a name leads to from its second lookup on
}

func (i *internet) upstream() Upstream {
	return Upstream{
		Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.lookups++
			list := i.names[name]
			if again := i.rebind[name]; again != nil && i.lookups > 1 {
				list = again
			}
			if list == nil {
				return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
			}
			var addrs []netip.Addr
			for _, a := range list {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			return addrs, nil
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			i.mu.Lock()
			i.dialled = append(i.dialled, to.String())
			real, ok := i.servers[to.String()]
			i.mu.Unlock()
			switch {
			case real == "silent":
				<-ctx.Done()
				return nil, ctx.Err()
			case !ok:
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", real)
		},
	}
}

// echoServer answers with what it was sent, and ends when its client does.
func echoServer(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// webServer says which host it was asked for.
func webServer(t testing.TB) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "[%s %s %s]", r.Host, r.URL.Path, body)
	}))
	t.Cleanup(s.Close)
	return s
}

func hostRule(host string) Rule {
	r := Rule{Text: host, Host: host}
	if rest, ok := strings.CutPrefix(host, "*."); ok {
		r.Host, r.Wildcard = rest, true
	}
	return r
}

func TestForwardHTTP(t *testing.T) {
	web := webServer(t)
	net1 := &internet{names: map[string][]string{"a.example": {"93.184.216.34"}, "b.w.example": {"2606:2800:220:1::1", "93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:80": web.Listener.Addr().String()}}
	g := newGuest(t, Config{Rules: []Rule{hostRule("a.example"), hostRule("*.w.example")}, Upstream: net1.upstream()})
	get := func(host, path string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	}
	if out, err := g.say("a.example", 80, get("a.example", "/x")); err != nil || !strings.Contains(out, "[a.example /x ]") {
		t.Errorf("%q %v", out, err)
	}
	if d := g.log.last(); d.Verdict != Allowed || d.Name != "a.example" || d.Rule != "a.example" || d.BytesUp == 0 || d.BytesDown == 0 || d.Dialled != "93.184.216.34:80" {
		t.Errorf("%+v", d)
	}
	// The second address answers where the first does not.
	if out, err := g.say("b.w.example", 80, get("B.W.Example.:80", "/y")); err != nil || !strings.Contains(out, "/y ]") {
		t.Errorf("%q %v", out, err)
	}
	// A chunked body, a kept connection, a body with a length.
	out, err := g.say("a.example", 80, "POST /1 HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n"+
		"POST /2 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\n\r\nbody"+"GET http://a.example/3 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
	if err != nil || !strings.Contains(out, "/1 abcde]") || !strings.Contains(out, "/2 body]") || !strings.Contains(out, "/3 ]") {
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
	net1 := &internet{names: map[string][]string{"good.example": {"93.184.216.34"}, "x.wild.example": {"93.184.216.34"}}, servers: map[string]string{}}
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
	get := "GET / HTTP/1.1\r\n"
	for name, c := range map[string]struct {
		port   uint16
		say    string
		reason string
	}{
		"another host":                   {80, get + "Host: evil.example\r\n\r\n", "HTTP for evil.example"},
		"another host, second request":   {80, get + "Host: good.example\r\n\r\n" + get + "Host: evil.example\r\n\r\n", "HTTP for evil.example"},
		"another host behind a body":     {80, "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 2\r\n\r\nok" + get + "Host: evil.example\r\n\r\n", "HTTP for evil.example"},
		"another port in Host":           {80, get + "Host: good.example:81\r\n\r\n", "HTTP for good.example:81"},
		"an address in Host":             {80, get + "Host: 93.184.216.34\r\n\r\n", "HTTP for 93.184.216.34"},
		"no Host":                        {80, get + "X: 1\r\n\r\n", "0 Host fields"},
		"HTTP/1.0 without Host":          {80, "GET / HTTP/1.0\r\n\r\n", "0 Host fields"},
		"two Hosts":                      {80, get + "Host: good.example\r\nHost: evil.example\r\n\r\n", "2 Host fields"},
		"two Hosts in one":               {80, get + "Host: good.example, evil.example\r\n\r\n", "HTTP for good.example, evil.example"},
		"an empty Host":                  {80, get + "Host:\r\n\r\n", "HTTP for "},
		"Host with a NUL":                {80, get + "Host: good.example\x00.evil.example\r\n\r\n", "control character"},
		"Host with an at sign":           {80, get + "Host: good.example@evil.example\r\n\r\n", "HTTP for"},
		"Host with a space before":       {80, get + "Host : good.example\r\n\r\n", "malformed header line"},
		"a folded Host":                  {80, get + "Host: good.example\r\n evil.example\r\n\r\n", "malformed header line"},
		"a bare LF":                      {80, get + "Host: good.example\nX: 1\r\n\r\n", "control character"},
		"a bare CR":                      {80, get + "Host: good.example\rHost: evil.example\r\n\r\n", "control character"},
		"the absolute form elsewhere":    {80, "GET http://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", "another host than Host"},
		"the absolute form with a user":  {80, "GET http://good.example@evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", "another host than Host"},
		"the absolute form with a query": {80, "GET http://evil.example?good.example HTTP/1.1\r\nHost: good.example\r\n\r\n", "another host than Host"},
		"the authority form":             {80, "GET evil.example:80 HTTP/1.1\r\nHost: good.example\r\n\r\n", "another host than Host"},
		"another scheme":                 {80, "GET ftp://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", "another host than Host"},
		"CONNECT":                        {80, "CONNECT good.example:80 HTTP/1.1\r\nHost: good.example\r\n\r\n", "CONNECT"},
		"length and chunks":              {80, "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "both Content-Length"},
		"two lengths":                    {80, "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n", "Content-Length"},
		"a list of lengths":              {80, "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4, 4\r\n\r\n", "Content-Length"},
		"a signed length":                {80, "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: +4\r\n\r\n", "Content-Length"},
		"a hexadecimal length":           {80, "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 0x4\r\n\r\n", "Content-Length"},
		"an obfuscated encoding":         {80, "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: xchunked\r\n\r\n", "Transfer-Encoding"},
		"two encodings":                  {80, "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", "Transfer-Encoding"},
		"an encoding in a list":          {80, "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "Transfer-Encoding"},
		"chunks in HTTP/1.0":             {80, "POST / HTTP/1.0\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0"},
		"a chunk with a sign":            {80, "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n", "a malformed chunk"},
		"a chunk that lies":              {80, "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", "longer than its size"},
		"a chunk's line without CR":      {80, "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n1\nab\r\n", "a malformed chunk"},
		"a chunk of all memory":          {80, "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", "a malformed chunk"},
		"an upgrade to HTTP/2":           {80, get + "Host: good.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n", "HTTP/2 in the clear"},
		"HTTP/2 by prior knowledge":      {80, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "this is not HTTP or TLS: --allow-tcp"},
		"HTTP/0.9":                       {80, "GET /\r\n", "this is not HTTP or TLS: --allow-tcp"},
		"a late upgrade":                 {80, get + "Host: good.example\r\n\r\n" + get + "Host: good.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", "upgrade after other requests"},
		"a head without an end":          {80, get + "Host: good.example\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n", "an HTTP head of more than"},
		"ten thousand fields":            {80, get + "Host: good.example\r\n" + strings.Repeat("a:b\r\n", 10_000) + "\r\n", "an HTTP head of more than"},
		"SSH":                            {80, "SSH-2.0-OpenSSH_9.0\r\n", "this is not HTTP or TLS: --allow-tcp"},
		"SMTP":                           {443, "EHLO good.example\r\n", "this is not HTTP or TLS: --allow-tcp"},
		"noise":                          {443, string([]byte{0, 1, 2, 3, '\n'}), "this is not HTTP or TLS: --allow-tcp"},
		"plain HTTP for another on 443":  {443, get + "Host: evil.example\r\n\r\n", "HTTP for evil.example"},
		"TLS for another":                {443, hello("evil.example", nil), "TLS for evil.example"},
		"TLS for another on 80":          {80, hello("evil.example", nil), "TLS for evil.example"},
		"TLS without a name":             {443, hello("", nil), "without a server name"},
		"TLS for an address":             {443, hello("93.184.216.34", nil), "without a server name"},
		"TLS for a name below":           {443, hello("a.good.example", nil), "TLS for a.good.example"},
		"TLS for a name with a tail":     {443, hello("good.example.evil.example", nil), "TLS for good.example.evil.example"},
		"encrypted client hello":         {443, hello("good.example", withECH), "encrypted client hello"},
		"a TLS record that lies":         {443, "\x16\x03\x01\xff\xff" + strings.Repeat("x", 100_000), "TLS hello"},
		"a TLS record of no handshake":   {443, "\x16\x03\x01\x00\x05hello", "no TLS hello"},
		"a hello over 32 KiB":            {443, "\x16\x03\x01\x40\x00\x01\x00\xff\xff" + strings.Repeat("\x00", 16380) + strings.Repeat("\x16\x03\x01\x40\x00"+strings.Repeat("\x00", 16384), 3), "TLS hello"},
	} {
		t.Run(name, func(t *testing.T) {
			mu.Lock()
			reached.Reset()
			mu.Unlock()
			g := newGuest(t, Config{Rules: []Rule{hostRule("good.example"), hostRule("*.wild.example")}, Upstream: net1.upstream()})
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

func withECH(c *tls.Config) {
	key, err := crandECDH()
	if err != nil {
		panic(err)
	}
	c.MinVersion = tls.VersionTLS13
	c.EncryptedClientHelloConfigList = key
}

// crandECDH returns an ECHConfigList (RFC 9849, section 4) with a fresh key.
func crandECDH() ([]byte, error) {
	public := make([]byte, 32)
	if _, err := crand.Read(public); err != nil {
		return nil, err
	}
	name := "front.example"
	body := append([]byte{7, 0, 0x20, 0, 32}, public...)
	body = append(body, 0, 4, 0, 1, 0, 1, 32, byte(len(name)))
	body = append(append(body, name...), 0, 0)
	config := append([]byte{0xfe, 0x0d, byte(len(body) >> 8), byte(len(body))}, body...)
	return append([]byte{byte(len(config) >> 8), byte(len(config))}, config...), nil
}

// recorder is the network of a TLS client that speaks to nobody.
type recorder struct{ w io.Writer }

func (r recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (r recorder) Write(p []byte) (int, error)      { return r.w.Write(p) }
func (r recorder) Close() error                     { return nil }
func (r recorder) LocalAddr() net.Addr              { return nil }
func (r recorder) RemoteAddr() net.Addr             { return nil }
func (r recorder) SetDeadline(time.Time) error      { return nil }
func (r recorder) SetReadDeadline(time.Time) error  { return nil }
func (r recorder) SetWriteDeadline(time.Time) error { return nil }

// TestForwardTLS: a real handshake with the server's own certificate, the hello in
// pieces, and HTTP/2 inside.
func TestForwardTLS(t *testing.T) {
	server, roots := secureServer(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto, " ", r.Host) }, "good.example")
	net1 := &internet{names: map[string][]string{"good.example": {"93.184.216.34"}}, servers: map[string]string{"93.184.216.34:443": server.Listener.Addr().String()}}
	g := newGuest(t, Config{Rules: []Rule{hostRule("good.example")}, Upstream: net1.upstream()})
	for name, chunk := range map[string]int{"whole": 1 << 20, "in pieces of 7": 7} {
		client := &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				c, err := g.dial("good.example", 443)
				return pieces{c, chunk}, err
			},
			TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
		res, err := client.Get("https://good.example/")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(body) != "HTTP/2.0 good.example" {
			t.Errorf("%s: %s", name, body)
		}
		client.CloseIdleConnections()
	}
}

// pieces writes in small ones.
type pieces struct {
	net.Conn
	size int
}

func (p pieces) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := p.Conn.Write(b[done:min(len(b), done+p.size)])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// Where a connection may not go, whatever the name.
func TestForwardDenies(t *testing.T) {
	echo := echoServer(t)
	private := map[string][]string{"multi.example": {"10.0.0.1", "127.0.0.1"}}
	for i, a := range []string{"127.0.0.1", "127.9.9.9", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "169.254.170.2", "100.64.0.1", "0.0.0.0", "0.1.2.3", "224.0.0.1",
		"240.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.0.1", "168.63.129.16", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
		"64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "::127.0.0.1", "fec0::1"} {
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
	g := newGuest(t, Config{Upstream: net1.upstream(), Limits: Limits{NewPerSecond: 1000, DNSPerSecond: 1000}, Rules: []Rule{
		hostRule("*.private.example"), hostRule("multi.example"), hostRule("ok.example"), {Text: "net 10.9.9.9", Addr: netip.MustParseAddr("10.9.9.9")},
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
	// A port that the name's rule does not have.
	if _, err := g.dial("ok.example", 8080); err == nil {
		t.Error("connected to another port")
	}
	if d := g.log.last(); d.Reason != "no rule allows this port" {
		t.Errorf("%+v", d)
	}
	for _, name := range []string{"evil.example", "private.example", "example", "ok.example.evil.example", "xok.example", "ok-example"} {
		if addr, code := g.lookup(name); addr.IsValid() || code != dnsmessage.RCodeNameError {
			t.Errorf("%s: %v %v", name, addr, code)
		}
	}
}

// An answer that changes between the check and the dial: there is one lookup, and
// what it gave is what is dialled.
func TestForwardRebinding(t *testing.T) {
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"rebind.example": {"93.184.216.34"}}, rebind: map[string][]string{"rebind.example": {"127.0.0.1"}},
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
		{Text: "a", Host: "db.internal", Port: 5432, Raw: true}, {Text: "b", Host: "localhost", Port: port, Raw: true}, {Text: "c", Addr: netip.MustParseAddr("10.7.7.7"), Port: 25, Raw: true}}})
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

// What is open is listed with what it has carried so far, and no longer once it has ended.
func TestConnections(t *testing.T) {
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"db.internal": {"10.0.0.5"}}, servers: map[string]string{"10.0.0.5:5432": echo}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Rules: []Rule{{Text: "tcp db", Host: "db.internal", Port: 5432, Raw: true}}})
	if list := g.log.n.Connections(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	conn, err := g.dial("db.internal", 5432)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "12345"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	list := g.log.n.Connections()
	if len(list) != 1 || list[0].Name != "db.internal" || list[0].Rule != "tcp db" || list[0].BytesUp != 5 || list[0].BytesDown != 5 || list[0].Verdict != Allowed || list[0].Time.IsZero() {
		t.Errorf("%+v", list)
	}
	g.log.n.Cut()
	if list := g.log.n.Connections(); len(list) != 0 {
		t.Errorf("after the cut %+v", list)
	}
}

// What upstream does is what the guest sees: refusal, no answer, reset, and none of
// it before the guest's handshake is answered.
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
	net1 := &internet{names: map[string][]string{"refused.example": {"93.184.216.1"}, "silent.example": {"93.184.216.2"}, "reset.example": {"93.184.216.3"}, "empty.example": {}},
		servers: map[string]string{"93.184.216.2:99": "silent", "93.184.216.3:99": resetting.Addr().String()}}
	var rules []Rule
	for name := range net1.names {
		rules = append(rules, Rule{Text: name, Host: name, Port: 99, Raw: true})
	}
	rules = append(rules, Rule{Text: "gone", Host: "gone.example", Port: 99, Raw: true})
	g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream()})
	for name, reason := range map[string]string{"refused.example": "connection refused", "gone.example": "the name can't be resolved", "empty.example": "no address"} {
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

// WebSocket: after an upgrade that the server agrees to, anything goes, to that
// host; one that it does not agree to changes nothing.
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
	net1 := &internet{names: map[string][]string{"ws.example": {"93.184.216.34"}}, servers: map[string]string{"93.184.216.34:80": l.Addr().String()}}
	g := newGuest(t, Config{Rules: []Rule{hostRule("ws.example")}, Upstream: net1.upstream()})
	ask := "GET / HTTP/1.1\r\nHost: ws.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"
	if out, err := g.say("ws.example", 80, ask+"\x81\x05hello"); err != nil || !strings.HasSuffix(out, "got \x81\x05hello") {
		t.Errorf("%q %v", out, err)
	}
	g.log.last()
	agree = false
	d := g.decision(func() {
		if out, err := g.say("ws.example", 80, ask+"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"); err == nil || strings.Contains(out, "evil") {
			t.Errorf("%q %v", out, err)
		}
	})
	if d.Verdict != Denied || d.Reason != "HTTP for evil.example" {
		t.Errorf("%+v", d)
	}
}

func TestLimits(t *testing.T) {
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"e.example": {"93.184.216.34"}}, servers: map[string]string{"93.184.216.34:99": echo}}
	rules := []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true}}
	t.Run("connections", func(t *testing.T) {
		g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream(), Limits: Limits{Connections: 3}})
		for i := range 5 {
			c, err := g.dial("e.example", 99)
			if (err == nil) != (i < 3) {
				t.Errorf("connection %d: %v", i, err)
			}
			if err == nil {
				defer c.Close()
			}
		}
		if d := g.log.last(); d.Reason != "more than 3 connections at once" {
			t.Errorf("%+v", d)
		}
	})
	t.Run("new connections", func(t *testing.T) {
		g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream(), Limits: Limits{NewPerSecond: 4}})
		refused := 0
		for range 20 {
			c, err := g.dial("e.example", 99)
			if err != nil {
				refused++
				continue
			}
			c.Close()
		}
		if refused < 10 {
			t.Errorf("%d refused", refused)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream(), Limits: Limits{BytesUp: 1000}})
		if _, err := g.say("e.example", 99, strings.Repeat("x", 2000)); err == nil {
			t.Error("more went up than the limit")
		}
		if d := g.log.last(); !strings.Contains(d.Reason, "1000 bytes up") {
			t.Errorf("%+v", d)
		}
	})
	t.Run("queries", func(t *testing.T) {
		g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream(), Limits: Limits{DNSPerSecond: 5}})
		q := ethernet(0x0800, packetIPv4(17, udpPacket(dnsQuery("x.example.", dnsmessage.TypeA)), nil))
		for range 100 {
			g.n.handle(q)
		}
		if g.n.Stats()[DropDNS] < 90 {
			t.Errorf("%v", g.n.Stats())
		}
	})
	t.Run("names", func(t *testing.T) {
		f, known := &filter{[]Rule{hostRule("*.w.example")}}, newNames()
		var last *Decision
		for i := range maxNames + 10 {
			_, last = answerDNS(f, known, dnsQuery(fmt.Sprintf("n%d.w.example.", i), dnsmessage.TypeA))
		}
		if last.Verdict != Denied || last.Reason != "too many names" || len(known.byAddr) != maxNames {
			t.Errorf("%+v, %d names", last, len(known.byAddr))
		}
	})
	t.Run("a header that never comes", func(t *testing.T) {
		if testing.Short() {
			t.Skip("waits for the peek's deadline; not in -short")
		}
		web := &internet{names: map[string][]string{"h.example": {"93.184.216.34"}}, servers: map[string]string{"93.184.216.34:80": echo, "93.184.216.34:443": echo}}
		g := newGuest(t, Config{Rules: []Rule{hostRule("h.example")}, Upstream: web.upstream()})
		for port, start := range map[uint16]string{80: "GET / HTTP/1.1\r\nHost:", 443: "\x16\x03\x01\x02\x00\x01"} {
			c, err := g.dial("h.example", port)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, start)
		}
		slow := func() (n int) {
			g.log.mu.Lock()
			defer g.log.mu.Unlock()
			for _, d := range g.log.list {
				if strings.Contains(d.Reason, "within") {
					n++
				}
			}
			return n
		}
		testwait.Holds(peekTime+500*time.Millisecond, func() bool { return slow() == 2 })
		if got := slow(); got != 2 {
			t.Errorf("got %d headers that took too long, want 2: %+v", got, g.log.list)
		}
	})
}

func udpPacket(body []byte) []byte {
	return append([]byte{0x10, 0, 0, 53, byte((8 + len(body)) >> 8), byte(8 + len(body)), 0, 0}, body...)
}

// A peer that never reads, on either side, holds its buffers and no more, and ends
// with the network.
func TestForwardPeersThatNeverRead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // sends without end, reads nothing
				defer c.Close()
				junk := make([]byte, 64<<10)
				for {
					if _, err := c.Write(junk); err != nil {
						return
					}
				}
			}()
		}
	}()
	runtime.GC()
	before := runtime.NumGoroutine()
	t.Run("", func(t *testing.T) {
		net1 := &internet{names: map[string][]string{"e.example": {"93.184.216.34"}}, servers: map[string]string{"93.184.216.34:99": l.Addr().String()}}
		g := newGuest(t, Config{Rules: []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true}}, Upstream: net1.upstream()})
		for range 8 {
			c, err := g.dial("e.example", 99)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			for {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					break
				}
			}
		}
		begin := time.Now()
		g.n.Close()
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("Close took %s", took)
		}
	})
	testwait.Holds(2*time.Second, func() bool { return runtime.NumGoroutine() <= before+8 })
	if now := runtime.NumGoroutine(); now > before+8 { // the server's own
		t.Errorf("%d goroutines, %d before", now, before)
	}
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
	g := newGuest(t, Config{Upstream: up, Rules: []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true}, {Text: "n", Host: "no.example", Port: 99, Raw: true}, {Text: "p", Addr: netip.MustParseAddr("10.0.0.1"), Port: 99}}})
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

func FuzzHTTPHead(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"))
	f.Add([]byte("POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		head, err := parseHead(text)
		if err != nil || !bytes.HasSuffix(text, []byte("\r\n\r\n")) {
			return
		}
		// What we accept, Go's own parser reads in the same way, where it reads it.
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
		if err != nil {
			return
		}
		if !strings.EqualFold(req.Host, head.host) {
			t.Errorf("host %q, and %q to net/http", head.host, req.Host)
		}
		if req.ContentLength != head.length {
			t.Errorf("length %d, and %d to net/http", head.length, req.ContentLength)
		}
	})
}

func FuzzPeekTLS(f *testing.F) {
	var sent bytes.Buffer
	_ = tls.Client(recorder{&sent}, &tls.Config{ServerName: "a.example"}).Handshake()
	f.Add(sent.Bytes())
	f.Fuzz(func(t *testing.T, text []byte) {
		r := bytes.NewReader(text)
		name, read, err := peekTLS(r)
		if err == nil && !bytes.Equal(read, text[:len(text)-r.Len()]) {
			t.Errorf("%q: what was read is not what is passed on", name)
		}
	})
}

func FuzzDNS(f *testing.F) {
	f.Add(dnsQuery("a.w.example.", dnsmessage.TypeA))
	f.Add(dnsQuery("evil.", dnsmessage.TypeTXT))
	f.Fuzz(func(t *testing.T, body []byte) {
		flt := &filter{[]Rule{hostRule("*.w.example")}}
		answer, d := answerDNS(flt, newNames(), body)
		if d == nil {
			t.Fatal("no decision")
		}
		var m dnsmessage.Message
		if answer != nil && m.Unpack(answer) != nil {
			t.Fatalf("an answer that is none: %x", answer)
		}
		if len(answer) > len(body)+64 || (len(m.Answers) > 0) != (d.Verdict == Allowed && d.Addr != "") {
			t.Errorf("%+v: %d bytes for %d", d, len(answer), len(body))
		}
	})
}
