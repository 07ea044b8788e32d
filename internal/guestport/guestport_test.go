package guestport

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// proxied answers a request through a proxy to a server.
func proxied(t *testing.T, p *Proxy, r *http.Request, server http.HandlerFunc) *http.Response {
	t.Helper()
	hs := httptest.NewServer(server)
	defer hs.Close()
	p.Port = 8000
	p.Dial = func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", hs.Listener.Addr().String())
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result()
}

func TestProxy(t *testing.T) {
	show := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		_, _ = io.WriteString(w, strings.Join([]string{r.Host, r.RequestURI, r.Header.Get("Authorization"),
			r.Header.Get("Token"), r.Header.Get("X-Forwarded-Prefix"), r.Header.Get("X-Forwarded-Host")}, " "))
	}
	r := httptest.NewRequest("GET", "http://own.example/p/1/a%2Fb/c?x;y", nil)
	r.Header.Set("Authorization", "secret")
	r.Header.Set("Token", "secret")
	res := proxied(t, &Proxy{Prefix: "/p/1/", Drop: []string{"Token"}}, r, show)
	text, _ := io.ReadAll(res.Body)
	if string(text) != "127.0.0.1:8000 /a%2Fb/c?x;y   /p/1 " || res.Header.Get("Set-Cookie") != "" {
		t.Errorf("%q %v", text, res.Header)
	}
	res = proxied(t, &Proxy{Drop: []string{"Token"}}, r, show)
	text, _ = io.ReadAll(res.Body)
	if string(text) != "own.example /p/1/a%2Fb/c?x;y secret   own.example" || res.Header.Get("Set-Cookie") == "" {
		t.Errorf("%q %v", text, res.Header)
	}
	failed := ""
	p := &Proxy{Dial: func(context.Context) (net.Conn, error) { return nil, errors.New("nobody") },
		Failed: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err.Error() }}
	p.ServeHTTP(httptest.NewRecorder(), r)
	if failed != "nobody" {
		t.Error(failed)
	}
}

func TestAttackRedirects(t *testing.T) {
	from := &url.URL{Scheme: "http", Host: "127.0.0.1:80", Path: "/a/b"}
	for location, want := range map[string]string{
		"c": "/p/a/c", "/c/": "/p/c/", "../../../..": "/p/", "/%2E%2e/%2e%2e/c": "/p/c", "?q": "/p/a/b?q", "#f": "/p/a/b#f",
		"//other/": "", "https://127.0.0.1:80/": "", "http://127.0.0.1:81/": "", "http://u@127.0.0.1:80/": "",
		"javascript:x": "", "http://127.0.0.1:80\x00/": "", "http://127.0.0.1:80/x": "/p/x",
	} {
		attack.Check(t, "a redirect to "+location, want, within(from, []string{location}, "127.0.0.1:80", "/p/"))
	}
	attack.Check(t, "two redirects at once", "", within(from, []string{"/a", "/b"}, "127.0.0.1:80", "/p/"))
}
