package learn

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
)

// Allows says what the network's filter and then its broker say, whatever the grants are.
func TestAttackAllows(t *testing.T) {
	nets := []string{"a.ex.com", "*.ex.com", "a.ex.com:8443", "c.org", "203.0.113.7", "203.0.113.8:22", "[2001:db8::1]"}
	raw := []string{"a.ex.com:443", "c.org:22", "203.0.113.7:443"}
	https := []string{"GET a.ex.com/v1/*", "deny GET *.ex.com/v1/admin", "audit POST a.ex.com/v1/x", "GET c.org/**",
		"audit deny GET c.org/v1/*", "POST *.ex.com/**"}
	wrong, tried, yes := "none", 0, 0
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 7))
		some := func(list []string) (out []string) {
			for _, one := range list {
				if random.IntN(3) == 0 {
					out = append(out, one)
				}
			}
			return out
		}
		granted, _, err := policy.Resolve(policy.Request{AllowNet: some(nets), Ask: some(nets), AllowTCP: some(raw),
			AllowHTTP: some(https), AllowNetAny: random.IntN(6) == 0}, nil)
		if err != nil {
			continue // the rules contradict each other
		}
		j := judgeOf(granted)
		for _, host := range []string{"a.ex.com", "x.ex.com", "c.org", "d.org", "203.0.113.7", "203.0.113.8", "2001:db8::1",
			"127.0.0.1", "localhost"} {
			for _, port := range []uint16{22, 80, 443, 8443} {
				for _, ask := range []string{"GET /", "HEAD /v1/x", "POST /v1/x", "GET /v1/admin", "GET /v1/%2e%2e/w"} {
					method, path, _ := strings.Cut(ask, " ")
					name := host
					addr, err := netip.ParseAddr(host)
					if err == nil {
						name = ""
					}
					rule, _ := netstack.Decide(j.connections, name, addr, port)
					want := rule != ""
					if want && !strings.HasPrefix(rule, "tcp ") { // the broker reads it
						want, _ = broker.Decide(j.requests, host, method, path)
					}
					got, why := Allows(granted, method, host, port, path)
					if tried++; got {
						yes++
					}
					if got != want || why == "" || got && why != rule {
						wrong = fmt.Sprintf("seed %d: %s %s:%d%s: %v %q, want %v by %q", seed, method, host, port, path, got, why,
							want, rule)
					}
				}
			}
		}
	}
	if tried < 10_000 || yes < 1000 || tried-yes < 1000 {
		t.Errorf("only %d cases, %d allowed", tried, yes)
	}
	attack.Check(t, "learn: what Allows says, and the network does not", "none", wrong)
}
