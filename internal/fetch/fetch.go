// Package fetch makes the requests that the host makes for itself: to registries, for keys and for parts. Who
// answers such a request chooses where the next ones go, by redirects and by the addresses that it names. So only the
// server that the user named may be in a network that is not public; every other address is checked at the socket,
// behind the name's lookup. It keeps nothing between requests. Packages image, image/oci and mcp call it.
package fetch

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/unitask/unitask/internal/publicaddr"
)

// DialTime bounds a connection's handshake.
const DialTime = 10 * time.Second

// AddressError is why a server was not asked.
type AddressError struct {
	Host string
	Err  error
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("%s is not asked: %v, and nobody named it", e.Host, e.Err)
}

func (e *AddressError) Unwrap() error { return e.Err }

// Transport returns a copy of base (nil is http.DefaultTransport) for requests that begin at a server that the user
// named, as HOST or HOST:PORT. If that server is in a network that is not public, it is asked there; if not, it may not
// lead there later. also are other hosts that the user named.
func Transport(base *http.Transport, named string, also ...string) *http.Transport {
	usual, ok := http.DefaultTransport.(*http.Transport)
	switch {
	case base != nil:
	case ok:
		base = usual
	default: // a program has put another one there
		base = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: DialTime}
	}
	t := base.Clone()
	g := &guard{named: map[string]bool{}, exempt: map[string]bool{}}
	for _, name := range append([]string{named}, also...) {
		g.named[hostOf(name)] = true
	}
	for _, proxy := range proxies() { // it looks up names by itself
		g.exempt[proxy] = true
	}
	t.DialContext = g.dial
	proxy := t.Proxy
	t.Proxy = func(r *http.Request) (*url.URL, error) {
		if err := g.literal(r.Context(), r.URL.Hostname()); err != nil {
			return nil, err
		}
		if proxy == nil {
			return nil, nil
		}
		return proxy(r)
	}
	return t
}

// guard dials servers.
type guard struct {
	named map[string]bool // hosts, in lower case

	mu     sync.Mutex
	exempt map[string]bool // those that may be anywhere, once that is known
}

// exempted says that a host may be anywhere: it was named, and was in a network that is not public when it was first
// looked up.
func (g *guard) exempted(ctx context.Context, host string) bool {
	g.mu.Lock()
	known, ok := g.exempt[host]
	g.mu.Unlock()
	if ok || !g.named[host] {
		return known
	}
	inside, err := inside(ctx, host)
	if err != nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.exempt[host]; !ok {
		g.exempt[host] = inside
	}
	return g.exempt[host]
}

// inside says that a host is in a network that is not public.
func inside(ctx context.Context, host string) (bool, error) {
	local, err := publicaddr.LocalNetworks()
	if err != nil {
		return false, err
	}
	addrs := make([]netip.Addr, 1)
	if addrs[0], err = netip.ParseAddr(host); err != nil {
		if addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
			return false, err
		}
	}
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return publicaddr.Check(a, local) != nil }), nil
}

// literal checks a host that is an address: a proxy would be asked for it.
func (g *guard) literal(ctx context.Context, host string) error {
	host = strings.ToLower(host)
	addr, err := netip.ParseAddr(host)
	if err != nil || g.exempted(ctx, host) {
		return nil
	}
	return g.check(host, addr)
}

func (g *guard) check(host string, addr netip.Addr) error {
	local, err := publicaddr.LocalNetworks()
	if err == nil {
		err = publicaddr.Check(addr, local)
	}
	if err != nil {
		return &AddressError{host, err}
	}
	return nil
}

// dial connects to an address of a host, which is checked when it is known.
func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host := hostOf(address)
	d := &net.Dialer{Timeout: DialTime}
	if !g.exempted(ctx, host) {
		d.ControlContext = func(_ context.Context, _, at string, _ syscall.RawConn) error {
			addr, err := netip.ParseAddrPort(at)
			if err != nil {
				return err
			}
			return g.check(host, addr.Addr())
		}
	}
	return d.DialContext(ctx, network, address)
}

// hostOf is the host of HOST or HOST:PORT, in lower case.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return strings.ToLower(host)
}

// proxies are the hosts of those that the environment names.
func proxies() (hosts []string) {
	env := httpproxy.FromEnvironment()
	for _, text := range []string{env.HTTPProxy, env.HTTPSProxy} {
		if u, err := url.Parse(text); err == nil && u.Host != "" {
			hosts = append(hosts, strings.ToLower(u.Hostname()))
		} else if u, err := url.Parse("http://" + text); err == nil && text != "" {
			hosts = append(hosts, strings.ToLower(u.Hostname()))
		}
	}
	return hosts
}
