package fetch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// A server that the user named may be on this host; what it leads to may not, by whatever name. Which one was named is
// settled at its first lookup.
func TestAttackFetch(t *testing.T) {
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "internal") }))
	defer inner.Close()
	_, port, _ := net.SplitHostPort(inner.Listener.Addr().String())
	var to string
	outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }))
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
		attack.Check(t, "a fetch of the host's that is led to "+strings.ReplaceAll(row.to, port, "PORT"), row.want, get(Transport(nil, row.named), outer.URL))
	}
	to = "http://localhost:" + port
	attack.Check(t, "a fetch of the host's that is led to a host that the user named, too", "internal", get(Transport(nil, "127.0.0.1", "localhost"), outer.URL))
	attack.Check(t, "a fetch of the host's from a server that nobody named", "refused", get(Transport(nil, "registry.example"), outer.URL))
	proxied := Transport(&http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(outer.URL) }}, "registry.example")
	attack.Check(t, "a fetch of the host's of a literal address, by a proxy", "refused", get(proxied, "http://169.254.169.254/"))
}
