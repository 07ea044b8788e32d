package netstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
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

// guestOS is a TCP/IP stack at the guest's end of a link. It replaces a guest's kernel in tests.
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

// last waits for the last TCP decision of all received until now.
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
	addr := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddrFrom4(GuestAddr.As4()).WithPrefix()}
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
	return gonet.DialContextTCP(ctx, g.stack, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(addr.As4()), Port: port},
		ipv4.ProtocolNumber)
}

// lookup asks the network's resolver.
func (g *guestOS) lookup(name string) (netip.Addr, dnsmessage.RCode) {
	g.t.Helper()
	c, err := gonet.DialUDP(g.stack, nil, &tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(GatewayAddr.As4()), Port: 53},
		ipv4.ProtocolNumber)
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

// say opens a connection, sends text and returns everything that comes back.
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

// internet is an upstream for tests: names with addresses, and the local servers in their place. It records the dialled
// addresses.
type internet struct {
	mu      sync.Mutex
	names   map[string][]string
	servers map[string]string // "address:port" → its real address
	dialled []string
	lookups int
	rebind  map[string][]string // a name's addresses from its second lookup on
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

// echoServer answers with its input, and ends when its client does.
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

// webServer answers with the requested host.
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
