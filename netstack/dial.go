package netstack

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"
)

const (
	dialTime    = 10 * time.Second       // to resolve a name and to connect, all addresses together
	dialStagger = 250 * time.Millisecond // before the next address is tried beside (RFC 8305)
	maxAddrs    = 16                     // of a name
	maxProxy    = 8 << 10                // of a proxy's answer to CONNECT
)

// Upstream is how the host reaches what a guest may reach. The zero value is the
// host's own resolver and network, without a proxy.
type Upstream struct {
	// Resolve returns a name's addresses; it must return when ctx ends. It may
	// be called from any goroutine, as may the others.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Dial connects to an address that was checked.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Proxy returns the HTTP proxy for a host, or nil. With a proxy, it resolves
	// the name, and its own rules say where that may lead.
	Proxy func(host string, port uint16) *url.URL
}

func (u Upstream) withDefaults() Upstream {
	if u.Resolve == nil {
		u.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if u.Dial == nil {
		u.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", to.String())
		}
	}
	if u.Proxy == nil {
		u.Proxy = func(string, uint16) *url.URL { return nil }
	}
	return u
}

// dial reaches a target for a rule. The addresses are checked once, and it is they
// that are dialled, never the name again.
func (u Upstream) dial(ctx context.Context, t target, r *Rule) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	host := t.name
	if host == "" {
		host = t.addr.String()
	}
	if proxy := u.Proxy(host, t.port); proxy != nil && !r.loopback() {
		if t.name == "" && !r.Raw && !public(t.addr) {
			return nil, errNotPublic
		}
		return u.dialProxy(ctx, proxy, net.JoinHostPort(host, strconv.Itoa(int(t.port))))
	}
	addrs := []netip.Addr{t.addr}
	if t.name == "localhost" {
		addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	} else if t.name != "" {
		var err error
		if addrs, err = u.Resolve(ctx, t.name); err != nil {
			return nil, err
		}
	}
	var good []netip.Addr
	for _, a := range addrs {
		if a = a.Unmap(); r.Raw || public(a) {
			good = append(good, a)
		}
	}
	switch {
	case len(addrs) == 0:
		return nil, errors.New("the name has no address")
	case len(good) == 0:
		return nil, errNotPublic
	}
	return u.dialAny(ctx, good[:min(len(good), maxAddrs)], t.port)
}

// dialAny connects to the first address that answers; each next one is tried when
// the one before has failed, or is slow.
func (u Upstream) dialAny(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	start := func(a netip.Addr) {
		conn, err := u.Dial(ctx, netip.AddrPortFrom(a, port))
		select {
		case results <- result{conn, err}:
		case <-ctx.Done():
			if conn != nil {
				conn.Close()
			}
		}
	}
	var first error
	next, running := 0, 0
	for {
		if next < len(addrs) {
			go start(addrs[next])
			next, running = next+1, running+1
		}
		var wait <-chan time.Time
		if next < len(addrs) {
			timer := time.NewTimer(dialStagger)
			defer timer.Stop()
			wait = timer.C
		}
		select {
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			if first == nil {
				first = r.err
			}
			if running--; running == 0 && next == len(addrs) {
				return nil, first
			}
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// dialProxy asks an HTTP proxy for a tunnel.
func (u Upstream) dialProxy(ctx context.Context, proxy *url.URL, to string) (net.Conn, error) {
	if proxy.Scheme != "http" {
		return nil, fmt.Errorf("proxy %s: only http:// proxies are supported", proxy.Redacted())
	}
	port := proxy.Port()
	if port == "" {
		port = "80"
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to}, Host: to, Header: http.Header{}}
	if user := proxy.User; user != nil {
		password, _ := user.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("proxy: %w", err)
	}
	r := bufio.NewReaderSize(conn, maxProxy)
	res, err := http.ReadResponse(r, req)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		conn.Close()
		return nil, fmt.Errorf("proxy: %s", res.Status)
	}
	if r.Buffered() > 0 { // a server that speaks first
		early, _ := r.Peek(r.Buffered())
		return &earlyConn{Conn: conn, early: append([]byte(nil), early...)}, nil
	}
	return conn, nil
}

// earlyConn is a connection whose first bytes were read already.
type earlyConn struct {
	net.Conn
	early []byte
}

func (c *earlyConn) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite ends our side.
func (c *earlyConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// isTimeout says that nobody answered, as against a refusal.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) || (errors.As(err, &timeout) && timeout.Timeout())
}
