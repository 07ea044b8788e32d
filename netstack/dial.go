package netstack

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/hostname"
	"github.com/unitask/unitask/internal/publicaddr"
)

const (
	dialTime    = 10 * time.Second       // to resolve a name and connect, all addresses together
	dialStagger = 250 * time.Millisecond // delay before the next address is tried in parallel (RFC 8305)
	maxAddrs    = 16                     // of a name
	maxProxy    = 16 << 10               // of a proxy's answer to CONNECT, with the data directly after it
)

// Upstream resolves and dials the hosts that the rules allow. The zero value uses the host's own resolver and
// network, without a proxy. Its functions may be called from any goroutine. Those with a context must return soon
// after it has ended: Close waits for them.
type Upstream struct {
	// Resolve returns the addresses of a name in normal form. The name is complete: no search domain may be
	// appended.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Dial connects to a checked address. nil dials over the host's network, and checks the address again when a
	// socket exists.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Local returns the addresses of the host's interfaces, each with its network: only raw rules lead there. It
	// is called at every dial.
	Local func() ([]netip.Prefix, error)
	// Here reports whether the host's routes lead an address to the host itself, or to a network that the host is
	// on. It is called in addition to Local.
	Here func(netip.Addr) (bool, error)
	// Proxy returns the HTTP proxy for a host, or nil. A proxy resolves the name, and its own rules decide where
	// the name may lead. It receives only names in normal form, and addresses that passed the same checks as for
	// a direct dial.
	Proxy func(host string, port uint16) *url.URL
}

func (u Upstream) withDefaults() Upstream {
	if u.Resolve == nil {
		u.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
		}
	}
	if u.Local == nil {
		u.Local = publicaddr.LocalNetworks
	}
	if u.Here == nil {
		u.Here = routedHere
	}
	if u.Proxy == nil {
		u.Proxy = func(string, uint16) *url.URL { return nil }
	}
	return u
}

var (
	errNoName    = errors.New("not a host name")
	errNoAddress = errors.New("the name has no address")
	errDenied    = errors.New("leads to an address that a rule denies")
)

// checker returns the check for an address before it is dialled for a rule. denied reports whether another rule
// denies an address; nil means that none does.
func (u Upstream) checker(r *Rule, denied func(netip.Addr) bool) func(netip.Addr) error {
	return func(addr netip.Addr) error {
		switch {
		case denied != nil && denied(addr):
			return errDenied
		case r.Raw:
			return nil
		}
		local, err := u.Local()
		if err != nil {
			return err
		}
		if err := publicaddr.Check(addr, local); err != nil {
			return err
		}
		here, err := u.Here(publicaddr.Unwrap(addr))
		if err == nil && here {
			err = publicaddr.ErrOwn
		}
		return err
	}
}

// dial is the only way out: it resolves a target, checks it against the rule, and connects. It returns what was
// dialled: an address with its port, or a proxy. Names are resolved once; dial connects to the checked addresses,
// never to the name again.
func (u Upstream) dial(ctx context.Context, t target, r *Rule, denied func(netip.Addr) bool) (conn net.Conn,
	dialled string, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	check := u.checker(r, denied)
	host := t.name
	if t.name == "" {
		if err := check(t.addr); err != nil {
			return nil, "", err
		}
		host = t.addr.String()
	} else if name, ok := normalName(t.name); !ok || name != t.name {
		return nil, "", errNoName
	}
	if proxy := u.Proxy(host, t.port); proxy != nil && !r.loopback() {
		conn, err := u.dialProxy(ctx, proxy, net.JoinHostPort(host, strconv.Itoa(int(t.port))))
		return conn, "proxy " + proxy.Host, err
	}
	addrs := []netip.Addr{t.addr}
	switch {
	case t.name == hostname.Local:
		addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	case t.name != "":
		if addrs, err = u.Resolve(ctx, t.name); err != nil {
			return nil, "", err
		}
	}
	refused := errNoAddress
	var good []netip.Addr
	for _, a := range addrs[:min(len(addrs), maxAddrs)] {
		a = a.Unmap()
		if err := check(a); err != nil {
			refused = err
			continue
		}
		good = append(good, a)
	}
	if len(good) == 0 {
		return nil, "", refused
	}
	conn, to, err := u.dialAny(ctx, good, t.port, check)
	if err != nil {
		return nil, "", err
	}
	return conn, to.String(), nil
}

// dialAny connects to the first address that responds; each next one is tried when the previous one has failed or
// is slow. When dialAny returns, no other attempt is running.
func (u Upstream) dialAny(ctx context.Context, addrs []netip.Addr, port uint16, check func(netip.Addr) error) (net.Conn,
	netip.AddrPort, error) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	type result struct {
		conn net.Conn
		to   netip.AddrPort
		err  error
	}
	results := make(chan result)
	start := func(a netip.Addr) {
		to := netip.AddrPortFrom(a, port)
		conn, err := u.connect(ctx, to, check)
		select {
		case results <- result{conn, to, err}:
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
			a := addrs[next]
			group.Go(func() { start(a) })
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
				return r.conn, r.to, nil
			}
			if first == nil {
				first = r.err
			}
			if running--; running == 0 && next == len(addrs) {
				return nil, netip.AddrPort{}, first
			}
		case <-wait:
		case <-ctx.Done():
			return nil, netip.AddrPort{}, context.Cause(ctx)
		}
	}
}

// connect dials one address. Time has passed since the check, and only the socket's own address counts. So,
// unless Dial is set, the check is repeated after the socket is created and before it connects.
func (u Upstream) connect(ctx context.Context, to netip.AddrPort, check func(netip.Addr) error) (net.Conn, error) {
	if u.Dial != nil {
		return u.Dial(ctx, to)
	}
	d := net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return check(at.Addr())
	}}
	return d.DialContext(ctx, "tcp", to.String())
}

// dialProxy asks an HTTP proxy for a tunnel.
func (u Upstream) dialProxy(ctx context.Context, proxy *url.URL, to string) (net.Conn, error) {
	if proxy.Scheme != "http" {
		return nil, fmt.Errorf("proxy %s://%s: only http:// proxies are supported", proxy.Scheme, proxy.Host)
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
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+
			password)))
	}
	if err := req.Write(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("proxy: %w", err)
	}
	r := bufio.NewReaderSize(io.LimitReader(conn, maxProxy), maxProxy)
	res, err := http.ReadResponse(r, req)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		conn.Close()
		return nil, fmt.Errorf("proxy: %s", res.Status)
	}
	if r.Buffered() > 0 { // the server sends data first
		early, _ := r.Peek(r.Buffered())
		return &earlyConn{Conn: conn, early: append([]byte(nil), early...)}, nil
	}
	return conn, nil
}

// earlyConn is a connection whose first bytes were already read.
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

// CloseWrite closes our side.
func (c *earlyConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// isTimeout reports whether nobody responded, as opposed to a refusal.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) ||
		(errors.As(err, &timeout) && timeout.Timeout())
}
