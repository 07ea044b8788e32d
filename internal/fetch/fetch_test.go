package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http/httpproxy"

	"github.com/unitask/unitask/internal/attack"
)

// A server that the user named may be on this host. Servers that it leads to may not, under any name. Its first lookup
// decides what was named.
func TestAttackFetch(t *testing.T) {
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprint(w, "internal")
	}))
	defer inner.Close()
	_, port, _ := net.SplitHostPort(inner.Listener.Addr().String())
	var to string
	outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		http.Redirect(w, r, to, http.StatusFound)
	}))
	defer outer.Close()
	get := func(tr *http.Transport, at string) string {
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Get(at)
		if errors.As(err, new(*AddressError)) {
			return "refused"
		}
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return string(text)
	}
	for _, row := range []struct{ named, to, want string }{
		{"127.0.0.1", "http://127.0.0.1:" + port, "internal"}, // the host that was named, another port
		{"127.0.0.1", "http://localhost:" + port, "refused"},
		{"127.0.0.1", "http://127.0.0.2:" + port, "refused"},
		{"127.0.0.1", "http://[::1]:" + port, "refused"},
		{"127.0.0.1", "http://[::ffff:127.0.0.2]:" + port, "refused"},
		{"127.0.0.1", "http://0.0.0.0:" + port, "refused"},
		{"127.0.0.1", "http://10.0.0.1/", "refused"},
		{"127.0.0.1", "http://169.254.169.254/latest/meta-data/", "refused"},
	} {
		to = row.to
		attack.Check(t, "a fetch of the host's that is led to "+strings.ReplaceAll(row.to, port, "PORT"), row.want,
			get(Transport(nil, row.named), outer.URL))
	}
	to = "http://localhost:" + port
	attack.Check(t, "a fetch of the host's that is led to a host that the user named, too", "internal",
		get(Transport(nil, "127.0.0.1", "localhost"), outer.URL))
	attack.Check(t, "a fetch of the host's from a server that nobody named", "refused",
		get(Transport(nil, "registry.example"), outer.URL))
	proxied := Transport(&http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(outer.URL) }},
		"registry.example")
	attack.Check(t, "a fetch of the host's of a literal address, by a proxy", "refused",
		get(proxied, "http://169.254.169.254/"))
}

// A proxy on this host, as most on loopback are, does not let registries lead elsewhere on this host, nor to itself.
func TestAttackFetchProxy(t *testing.T) {
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprint(w, "internal")
	}))
	defer inner.Close()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprint(w, "proxied ", r.RequestURI)
	}))
	defer proxy.Close()
	_, port, _ := net.SplitHostPort(inner.Listener.Addr().String())
	_, proxyPort, _ := net.SplitHostPort(proxy.Listener.Addr().String())
	for _, row := range []struct{ host, to, want string }{
		{"127.0.0.1", "http://127.0.0.1:" + port, "refused"},
		{"localhost", "http://localhost:" + port, "refused"},
		{"127.0.0.1", "http://127.0.0.1:" + proxyPort, "refused"},
		{"localhost", "http://localhost:" + proxyPort, "refused"},
		{"127.0.0.1", "http://registry.example/v2/", "proxied http://registry.example/v2/"},
	} {
		at := "http://" + row.host + ":" + proxyPort
		t.Setenv("HTTP_PROXY", at)
		env := httpproxy.FromEnvironment().ProxyFunc() // net/http reads the environment once
		tr := Transport(&http.Transport{Proxy: func(r *http.Request) (*url.URL, error) { return env(r.URL) }},
			"registry.example")
		got := "refused"
		if res, err := (&http.Client{Transport: tr}).Get(row.to); err == nil {
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			got = string(text)
		} else if !errors.As(err, new(*AddressError)) {
			got = err.Error()
		}
		tr.CloseIdleConnections()
		attack.Check(t, fmt.Sprintf("a fetch of the host's with a proxy on %s, led to %s", row.host,
			strings.NewReplacer(proxyPort, "ITS PORT", port, "PORT").Replace(row.to)), row.want, got)
	}
}

// Whoever controls the name of a server that the user named can't lead the host to private addresses by a changed
// lookup.
func TestAttackFetchRebound(t *testing.T) {
	for _, row := range []struct{ first, then, want string }{
		{"127.0.0.1", "93.184.216.34", "refused"}, // it would answer, and then lead to 127.0.0.1
		{"127.0.0.1 93.184.216.34", "93.184.216.34", "refused"},
		{"93.184.216.34", "127.0.0.1", "refused"},
		{"10.1.2.3", "127.0.0.1", "refused"},
		{"10.1.2.3", "169.254.169.254", "refused"},
		{"10.1.2.3", "::1", "refused"},
		{"10.1.2.3", "10.1.2.4", "asked"},
		{"127.0.0.1", "127.0.0.1", "asked"},
		{"93.184.216.34", "93.184.216.35", "asked"},
	} {
		g := &guard{named: map[string]bool{"r.example": true}, inner: map[string]kinds{},
			lookup: func(context.Context, string, string) (list []netip.Addr, err error) {
				for _, a := range strings.Fields(row.first) {
					list = append(list, netip.MustParseAddr(a))
				}
				return list, nil
			}}
		got := "asked"
		if err := g.check("r.example", netip.MustParseAddr(row.then), g.innerOf(t.Context(), "r.example")); err != nil {
			got = "refused"
		}
		attack.Check(t, fmt.Sprintf("a server that was named, at %s when it is looked up, and then at %s", row.first,
			row.then), row.want, got)
	}
}

// A proxy looks names up itself. A registry can't lead it to a private name, nor to an address in other letters.
func TestAttackFetchProxyNames(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprint(w, "proxied ", r.Host)
	}))
	defer proxy.Close()
	at, _ := url.Parse(proxy.URL)
	t.Setenv("HTTP_PROXY", proxy.URL)
	known := map[string]string{"vault.corp.example.com": "10.0.0.9", "mixed.example.com": "93.184.216.34 169.254.169.254",
		"blobs.example.com": "93.184.216.34"}
	for _, row := range []struct{ to, want string }{
		{"http://registry.example/v2/", "proxied registry.example"}, // the one that was named
		{"http://metadata/", "refused"},
		{"http://metadata.google.internal/", "refused"},
		{"https://metadata.google.internal/", "refused"},
		{"https://vault/", "refused"},
		{"https://vault.corp/", "refused"},
		{"https://printer.local/", "refused"},
		{"https://router.home.arpa/", "refused"},
		{"https://x.svc.cluster.local/", "refused"},
		{"https://vault.corp.example.com/", "refused"}, // this host can resolve it
		{"https://VAULT.corp.example.com./", "refused"},
		{"https://mixed.example.com/", "refused"},
		{"http://blobs.example.com/", "refused"}, // without TLS
		{"http://127.1/", "refused"},
		{"https://0x7f000001/", "refused"},
		{"http://2130706433/", "refused"},
		{"http://\uff11\uff12\uff17.0.0.1/", "refused"},
		{"http://169\u3002254\u3002169\u3002254/", "refused"},
		{"http://[::ffff:7f00:1]/", "refused"},
		{"https://blobs.example.com/", "asked"},
		{"https://unknown.example.com/", "asked"}, // this host can't resolve public names
	} {
		g := newGuard([]string{"registry.example"})
		g.lookup = func(_ context.Context, _, host string) (list []netip.Addr, err error) {
			for _, a := range strings.Fields(known[strings.TrimSuffix(host, ".")]) {
				list = append(list, netip.MustParseAddr(a))
			}
			if list == nil {
				err = &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			return list, err
		}
		tr := g.over(&http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return at, nil }})
		got := "asked" // from the proxy, which lacks CONNECT
		res, err := (&http.Client{Transport: tr}).Get(row.to)
		switch {
		case errors.As(err, new(*AddressError)):
			got = "refused"
		case err == nil:
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			got = string(text)
		}
		tr.CloseIdleConnections()
		attack.Check(t, "a fetch of the host's by a proxy that looks names up, led to "+row.to, row.want, got)
	}
}

// An invalid proxy address in the environment is not quoted: it may have a password.
func TestAttackProxySays(t *testing.T) {
	for _, proxy := range []string{"http://someuser:verysecret@proxy.example:x", "someuser:very secret@proxy.example:3128",
		"http://someuser:verysecret%zz@proxy.example"} {
		t.Setenv("HTTP_PROXY", proxy)
		env := httpproxy.FromEnvironment().ProxyFunc()
		tr := Transport(&http.Transport{Proxy: func(r *http.Request) (*url.URL, error) { return env(r.URL) }},
			"registry.example")
		_, err := (&http.Client{Transport: tr}).Get("http://registry.example/")
		got := "an error without the login"
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "someuser") {
			got = fmt.Sprint(err)
		}
		attack.Check(t, fmt.Sprintf("a proxy of the environment, %q", proxy), "an error without the login", got)
	}
}
