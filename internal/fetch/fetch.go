// Package fetch makes the host's own requests: to registries, for keys and for parts. The server that answers chooses
// where the next requests go, by redirects and by the addresses that it names. So only the server that the user named
// may be in a private network. The package checks every other address at the socket, after the name's lookup. A proxy
// of the host does the lookup itself; the package then checks names as far as it can. It keeps nothing between
// requests. Packages image, selfupdate, web and mcp call it.
package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"

	"github.com/unitask/unitask/internal/hostname"
	"github.com/unitask/unitask/internal/publicaddr"
)

// DialTime is the time limit of a connection's handshake.
const DialTime = 10 * time.Second

// AddressError says why a server was not asked.
type AddressError struct {
	Host string
	Err  error
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("%s is not asked: %v, and nobody named it", e.Host, e.Err)
}

func (e *AddressError) Unwrap() error { return e.Err }

// Transport returns a copy of base (nil is http.DefaultTransport) for requests that begin at a server that the user
// named, as HOST or HOST:PORT. If that server is in a private network, requests reach it only there. If it is public,
// requests must not go to a private network later. also are other hosts that the user named.
func Transport(base *http.Transport, named string, also ...string) *http.Transport {
	return newGuard(append([]string{named}, also...)).over(base)
}

func newGuard(named []string) *guard {
	g := &guard{named: map[string]bool{}, proxies: proxies(), lookup: net.DefaultResolver.LookupNetIP,
		inner: map[string]kinds{}}
	for _, name := range named {
		g.named[hostOf(name)] = true
	}
	return g
}

// over returns a copy of base that checks requests with the guard.
func (g *guard) over(base *http.Transport) *http.Transport {
	usual, ok := http.DefaultTransport.(*http.Transport)
	switch {
	case base != nil:
	case ok:
		base = usual
	default: // a program has replaced it
		base = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: DialTime}
	}
	t := base.Clone()
	t.DialContext = g.dial
	proxy := t.Proxy
	t.Proxy = func(r *http.Request) (*url.URL, error) {
		if err := g.asked(r.Context(), r.URL); err != nil || proxy == nil {
			return nil, err
		}
		by, err := proxy(r)
		if err != nil { // the error quotes the proxy's login
			return nil, errors.New("the proxy that the environment names is no address: use http://HOST:PORT")
		}
		if by != nil {
			err = g.askedByProxy(r.Context(), r.URL)
		}
		return by, err
	}
	return t
}

// guard dials servers and checks their addresses.
type guard struct {
	named   map[string]bool // hosts, in lower case
	proxies map[string]bool // HOST:PORT of the proxies in the environment
	lookup  func(ctx context.Context, network, host string) ([]netip.Addr, error)

	mu    sync.Mutex
	inner map[string]kinds // of the looked-up hosts among named
}

// kinds are the kinds of non-public addresses that a host had at its first lookup.
type kinds map[kind]bool

type kind int

const (
	ordinary kind = iota
	loopback
	link // link-local, such as the metadata services of clouds
)

func kindOf(addr netip.Addr) kind {
	switch addr = publicaddr.Unwrap(addr); {
	case addr.IsLoopback() || addr.IsUnspecified():
		return loopback
	case addr.IsLinkLocalUnicast():
		return link
	}
	return ordinary
}

// innerOf returns the kinds of non-public addresses that a host may have. A named host may have the kinds that it had
// at its first lookup.
func (g *guard) innerOf(ctx context.Context, host string) kinds {
	if !g.named[host] {
		return nil
	}
	g.mu.Lock()
	known, ok := g.inner[host]
	g.mu.Unlock()
	if ok {
		return known
	}
	found, err := g.find(ctx, host)
	if err != nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.inner[host]; !ok {
		g.inner[host] = found
	}
	return g.inner[host]
}

func (g *guard) find(ctx context.Context, host string) (kinds, error) {
	addrs := make([]netip.Addr, 1)
	var err error
	if addrs[0], err = netip.ParseAddr(host); err != nil {
		if addrs, err = g.lookup(ctx, "ip", host); err != nil {
			return nil, err
		}
	}
	found := kinds{}
	for _, addr := range addrs {
		if g.check(host, addr, nil) != nil {
			found[kindOf(addr)] = true
		}
	}
	return found, nil
}

// asked checks the target of a request. It is an address, which a proxy may be asked for, or a proxy, which must not be
// a target itself.
func (g *guard) asked(ctx context.Context, to *url.URL) error {
	host := asciiOf(to.Hostname())
	inner := g.innerOf(ctx, host)
	if g.proxies[addressOf(to)] && len(inner) == 0 {
		return &AddressError{host, errors.New("it is a proxy's")}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return g.check(host, addr, inner)
}

// askedByProxy checks a request through a proxy, which looks up the name itself. A host that the user did not name must
// have a public name, and use TLS, so that no other server can answer for it. If this host can look up the name, its
// addresses must be public. If the proxy gets other addresses, only the proxy can refuse them.
func (g *guard) askedByProxy(ctx context.Context, to *url.URL) error {
	host := asciiOf(to.Hostname())
	if g.named[host] {
		return nil
	}
	if _, err := netip.ParseAddr(host); err == nil { // asked has already checked addresses
		return nil
	}
	name := strings.TrimSuffix(host, ".")
	domain, managed := publicsuffix.PublicSuffix(name)
	switch {
	case hostname.Numeric(name):
		return &AddressError{host, errors.New("what ends in a number is no name")}
	case !managed && !strings.Contains(domain, ".") || domain == "arpa" || strings.HasSuffix(domain, ".arpa"):
		return &AddressError{host, errors.New("it is no name of the Internet's, and a proxy would look it up")}
	case to.Scheme != "https":
		return &AddressError{host, errors.New("without TLS a proxy could find any server by its name")}
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	addrs, err := g.lookup(ctx, "ip", host)
	if err != nil { // most hosts behind a proxy can't look up public names
		return nil
	}
	for _, addr := range addrs {
		if err := g.check(host, addr, nil); err != nil {
			return err
		}
	}
	return nil
}

// lookupTime is the time limit for looking up a name that a proxy looks up again.
const lookupTime = 2 * time.Second

// asciiOf returns a host's name as net/http dials it, in lower case. It turns full-width letters and digits into plain
// ones.
func asciiOf(host string) string {
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	return strings.ToLower(host)
}

// check returns an error if a host may not be asked at an address. A host that was in a private network may be asked
// only there. Otherwise, whoever controls its name could answer from elsewhere, and then redirect to private addresses.
func (g *guard) check(host string, addr netip.Addr, inner kinds) error {
	local, err := publicaddr.LocalNetworks()
	if err == nil {
		err = publicaddr.Check(addr, local)
	}
	switch {
	case len(inner) == 0 && err != nil:
	case len(inner) > 0 && err == nil:
		err = errors.New("a public address, and it had another one")
	case len(inner) > 0 && !inner[kindOf(addr)]:
	default:
		return nil
	}
	return &AddressError{host, err}
}

// dial connects to an address of a host, and checks the address just before.
func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{Timeout: DialTime}
	if !g.proxies[strings.ToLower(address)] {
		host := hostOf(address)
		inner := g.innerOf(ctx, host)
		d.ControlContext = func(_ context.Context, _, at string, _ syscall.RawConn) error {
			addr, err := netip.ParseAddrPort(at)
			if err != nil {
				return err
			}
			return g.check(host, addr.Addr(), inner)
		}
	}
	return d.DialContext(ctx, network, address)
}

// hostOf returns the host of HOST or HOST:PORT, in lower case.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return asciiOf(host)
}

// addressOf returns a URL's HOST:PORT, in lower case.
func addressOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(asciiOf(u.Hostname()), cmp.Or(port, "80"))
}

// proxies returns the proxies that the environment names. They look up names themselves.
func proxies() map[string]bool {
	env, list := httpproxy.FromEnvironment(), map[string]bool{}
	for _, text := range []string{env.HTTPProxy, env.HTTPSProxy} {
		if u, err := url.Parse(text); err == nil && u.Host != "" {
			list[addressOf(u)] = true
		} else if u, err := url.Parse("http://" + text); err == nil && text != "" {
			list[addressOf(u)] = true
		}
	}
	return list
}
