package learn

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Many runs with many hosts each do not make the memory grow without bound.
func TestAttackManyTargets(t *testing.T) {
	l := newLearner(Options{})
	for r := range 20 {
		src := &source{id: fmt.Sprint("r", r), used: map[request]bool{}}
		src.granted, _, _ = policy.Resolve(policy.Request{AllowNetAny: true}, nil)
		l.sources = append(l.sources, src)
		for i := range 2 * maxTargets {
			l.connected(src, tcp(fmt.Sprintf("h%d.example.com", i+r*(i/maxTargets)*maxTargets), 443, "net any"))
		}
	}
	used := 0
	for _, src := range l.sources {
		used += len(src.used)
	}
	attack.Check(t, "learn: hosts that are held, of many runs", "true", fmt.Sprint(len(l.nets) <= maxTargets &&
		len(l.unread) <= maxTargets && len(l.ruled) <= maxTargets))
	attack.Check(t, "learn: requests that are held, of many runs", "true", fmt.Sprint(used <= maxChecks))
}

// A run that is named twice counts once.
func TestNamedTwice(t *testing.T) {
	store := record.Open(testdir.Private(t))
	recorded(t, store, "r1", policy.Request{AllowNetAny: true},
		logged(tcp("a.example", 443, "net any")), "")
	p, err := From(store, []string{"r1", "r1"}, Options{})
	if err != nil || len(p.Runs) != 1 || p.Lines[0].Requests != 1 {
		t.Errorf("%+v %v", p, err)
	}
}

// probe is a request that code could make.
type probe struct {
	host         string
	port         uint16
	method, path string
}

// may reports whether grants allow a probe, and returns the netlog's lines about it.
func may(granted policy.Effective, p probe) (log []netstack.Decision, ok bool) {
	j := judgeOf(granted)
	rule, _ := netstack.Decide(j.connections, p.host, netip.Addr{}, p.port)
	if rule == "" {
		return nil, false
	}
	log = append(log, tcp(p.host, p.port, rule))
	src := &source{granted: granted}
	if read, _ := src.inspected(p.host); !read || strings.HasPrefix(rule, "tcp ") {
		return log, true
	}
	ok, text := broker.Decide(j.requests, p.host, p.method, p.path)
	line := web(p.host, p.method, p.path, text)
	if !ok {
		line.Verdict, line.Rule, line.Reason = netstack.Denied, "", text
	}
	return append(log, line), ok
}

// Whatever runs were granted and did, the ceiling allows nothing that no run was allowed.
func TestAttackNeverWider(t *testing.T) {
	nets := []string{"a.ex.com", "b.ex.com", "*.ex.com", "a.ex.com:8443", "*.ex.com:8443", "c.org", "x.a.ex.com"}
	raw := []string{"a.ex.com:443", "c.org:22"}
	https := []string{"GET a.ex.com/v1/*", "GET,POST *.ex.com/v1/*", "deny GET *.ex.com/v1/admin", "POST a.ex.com/v1/x",
		"GET c.org/**", "GET c.org/", "deny POST c.org/**"}
	var all []probe
	for _, host := range []string{"a.ex.com", "b.ex.com", "x.a.ex.com", "c.org", "ex.com", "d.org"} {
		for _, port := range []uint16{22, 80, 443, 8443} {
			for _, method := range []string{"GET", "HEAD", "POST"} {
				for _, path := range []string{"/", "/v1/x", "/v1/y/z", "/v1/admin", "/v1/*", "/v1/%2e%2e/w"} {
					all = append(all, probe{host, port, method, path})
				}
			}
		}
	}
	wider, tried := "none", 0
	for seed := range 210 {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		some := func(list []string) (out []string) {
			for _, one := range list {
				if random.IntN(4) == 0 {
					out = append(out, one)
				}
			}
			return out
		}
		store := record.Open(testdir.Private(t))
		var ids []string
		var grants []policy.Effective
		for r := range 1 + random.IntN(3) {
			asked := policy.Request{AllowNet: some(nets), Ask: some(nets), AllowTCP: some(raw), AllowHTTP: some(https),
				AllowNetAny: random.IntN(5) == 0}
			granted, _, err := policy.Resolve(asked, nil)
			if err != nil {
				continue // the rules contradict each other
			}
			var lines []netstack.Decision
			for range random.IntN(12) {
				log, _ := may(granted, all[random.IntN(len(all))])
				lines = append(lines, log...)
			}
			id := fmt.Sprint("r", r)
			recorded(t, store, id, asked, logged(lines...), "")
			ids, grants = append(ids, id), append(grants, granted)
		}
		if len(ids) == 0 {
			continue
		}
		p, err := From(store, ids, Options{})
		if err != nil {
			t.Fatal(seed, err)
		}
		ceiling, err := policy.ParseCeiling("learned", []byte(p.File))
		if err != nil {
			t.Fatal(seed, err)
		}
		learned, _, err := policy.Resolve(p.request(), ceiling)
		if err != nil {
			t.Fatal(seed, err)
		}
		tried++
		for _, one := range all {
			if _, ok := may(learned, one); ok && !slices.ContainsFunc(grants, func(g policy.Effective) bool {
				_, was := may(g, one)
				return was
			}) {
				wider = fmt.Sprintf("seed %d: %+v by\n%s", seed, one, p.File)
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d cases", tried)
	}
	attack.Check(t, "learn: what a ceiling allows and no run was allowed", "none", wider)
}

// A run whose connections are not all known is not run again: that could repeat them.
func TestAttackOffline(t *testing.T) {
	store := record.Open(testdir.Private(t))
	none := logged(refused("tcp", "a.example", "198.18.0.1", 443))
	for i, row := range []struct{ name, log, want string }{
		{"refused only", none, "offline"},
		{"a line that was cut", none + `{"proto":"tcp","verd`, "not known"},
		{"a line that is too long", none + strings.Repeat("a", maxLogLine+1) + "\n" +
			logged(tcp("a.example", 443, "net any")), "not known"},
		{"a netlog that was full", logged(netstack.Decision{Proto: netstack.ProtoNetlog}), "not known"},
	} {
		id := fmt.Sprint("r", i)
		recorded(t, store, id, policy.Request{AllowNetAny: true}, row.log, "")
		p, err := From(store, []string{id}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := "not known"
		if slices.Contains(p.Offline, id) {
			got = "offline"
		}
		attack.Check(t, "learn: run again? "+row.name, row.want, got)
	}
}

// --refused adds no address that is not public, however it is written.
func TestAttackPrivateSpellings(t *testing.T) {
	for _, text := range []string{"::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "::1",
		"fd00:ec2::254",
		"fe80::1", "100.64.0.1", "0.0.0.0", "2130706433", "0x7f000001", "127.1", "169.254.169.254.", "localhost.",
		"metadata", "[::1]"} {
		store := record.Open(testdir.Private(t))
		recorded(t, store, "r1", policy.Request{}, logged(refused("dns", text, "", 0), refused("tcp", text, "", 80),
			refused("tcp", "", text, 80)), "")
		p, err := From(store, []string{"r1"}, Options{Refused: true})
		if err != nil {
			t.Fatal(text, err)
		}
		attack.Check(t, "learn: refused "+text, "", fmt.Sprint(strings.Join(linesOf(t, p), "|")))
	}
}
