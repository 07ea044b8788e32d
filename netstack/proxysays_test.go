package netstack

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// The netlog's text about an unusable proxy contains no login.
func TestAttackProxySays(t *testing.T) {
	for _, proxy := range []string{"socks5://someuser:verysecret@127.0.0.1:1", "http://someuser:verysecret@127.0.0.1:1"} {
		at, err := url.Parse(proxy)
		if err != nil {
			t.Fatal(err)
		}
		up := (&internet{}).upstream()
		up.Proxy = func(string, uint16) *url.URL { return at }
		g := newGuest(t, Config{Upstream: up, Rules: []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true}}})
		if c, err := g.dial("e.example", 99); err == nil {
			c.Close()
			t.Error("connected by a proxy that is not there")
		}
		line := fmt.Sprintf("%+v", g.log.last())
		got := "a reason without the login"
		if strings.Contains(line, "secret") || strings.Contains(line, "someuser") || !strings.Contains(line, "proxy") {
			got = line
		}
		attack.Check(t, "the netlog of a proxy "+at.Scheme, "a reason without the login", got)
	}
}
