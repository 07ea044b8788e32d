package netstack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

// person answers questions, and records them.
type person struct {
	mu      sync.Mutex
	asked   []string
	open    atomic.Int64
	most    int64
	answers map[string]Answer
}

func (p *person) ask(_ context.Context, q Question) Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = max(p.most, p.open.Add(1))
	defer p.open.Add(-1)
	p.asked = append(p.asked, q.Target())
	return p.answers[q.Target()]
}

func (p *person) heard() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func askRule(host string) Rule {
	r := hostRule(host)
	r.Text, r.Ask = "ask "+host, true
	return r
}

func httpGet(host string) string {
	return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
}

// Each row is the connections of a guest to names that need an answer.
func TestAsk(t *testing.T) {
	web := webServer(t)
	names := map[string][]string{"inside.w.example": {"10.0.0.1"}, "metadata.w.example": {"169.254.169.254"},
		"own.w.example": {"127.0.0.1"}}
	for _, name := range []string{"once.w.example", "run.w.example", "no.w.example", "open.w.example", "later.w.example",
		"xn--pple-43d.w.example"} {
		names[name] = []string{"93.184.216.34"}
	}
	servers := map[string]string{"93.184.216.34:80": web.Listener.Addr().String()}
	yes := Answer{Allow: true, Why: "allowed"}
	answers := map[string]Answer{"once.w.example:80": {Allow: true, Once: true}, "run.w.example:80": yes,
		"no.w.example:80": {Why: "denied by somebody"}, "inside.w.example:80": yes, "metadata.w.example:80": yes,
		"own.w.example:80": yes, "xn--pple-43d.w.example:80": yes, "silent.w.example:80": {None: true, Allow: true},
		"quiet.w.example:80": {None: true}, "later.w.example:80": yes}
	for _, row := range []struct {
		name   string
		say    []string // NAME, or NAME>HOST to ask for another host there
		want   []string // ok, or the reason in the netlog
		asked  string
		lookup int // number of name lookups
	}{
		{"once is once", []string{"once.w.example", "once.w.example"}, []string{"ok", "ok"},
			"[once.w.example:80 once.w.example:80]", 2},
		{"for the run", []string{"run.w.example", "run.w.example"}, []string{"ok", "ok"}, "[run.w.example:80]", 2},
		{"no is no, and looks nothing up", []string{"no.w.example", "no.w.example"},
			[]string{"not approved: denied by somebody", "not approved: denied by somebody"}, "[no.w.example:80]", 0},
		{"an open rule asks nobody", []string{"open.w.example"}, []string{"ok"}, "[]", 1},
		{"a name, not what the rule is about", []string{"run.w.example>once.w.example"}, []string{"refused"},
			"[run.w.example:80]", 1},
		{"yes to a private address", []string{"inside.w.example"},
			[]string{"leads to an address that is not public: --allow-tcp may name it"}, "[inside.w.example:80]", 1},
		{"yes to metadata", []string{"metadata.w.example"},
			[]string{"leads to an address that is not public: --allow-tcp may name it"}, "[metadata.w.example:80]", 1},
		{"yes to the host's own", []string{"own.w.example"},
			[]string{"leads to an address that is not public: --allow-tcp may name it"}, "[own.w.example:80]", 1},
		{"a private address is not asked about", []string{"10.1.2.3", "169.254.169.254"},
			[]string{"leads to an address that is not public: --allow-tcp may name it",
				"leads to an address that is not public: --allow-tcp may name it"}, "[]", 0},
		{"after two that nobody answered nobody is asked",
			[]string{"silent.w.example", "quiet.w.example", "later.w.example", "silent.w.example"},
			[]string{"not approved: ", "not approved: ", "not approved: nobody has answered before", "not approved: "},
			"[silent.w.example:80 quiet.w.example:80]", 0},
		{"letters of another script are shown as they are looked up", []string{"xn--pple-43d.w.example"}, []string{"ok"},
			"[xn--pple-43d.w.example:80]", 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := &person{answers: answers}
			net1 := &internet{names: names, servers: servers}
			private := []Rule{{Text: "ask 10.1.2.3", Addr: netip.MustParseAddr("10.1.2.3"), Ask: true},
				{Text: "ask 169.254.169.254", Addr: netip.MustParseAddr("169.254.169.254"), Ask: true}}
			g := newGuest(t, Config{Rules: append([]Rule{askRule("*.w.example"), hostRule("open.w.example")}, private...),
				Upstream: net1.upstream(), Asker: NewAsker(p.ask)})
			for i, say := range row.say {
				name, host, other := strings.Cut(say, ">")
				if !other {
					host = name
				}
				out, _ := g.say(name, 80, httpGet(host))
				got := "ok"
				if d := g.log.last(); d.Verdict == Denied {
					if got = d.Reason; other {
						got = "refused"
					}
				} else if !strings.Contains(out, "["+host+" / ]") {
					got = "no answer: " + out
				}
				attack.Check(t, fmt.Sprint(row.name, " ", i), row.want[i], got)
			}
			attack.Check(t, "questions of: "+row.name, row.asked, fmt.Sprint(p.heard()))
			net1.mu.Lock()
			defer net1.mu.Unlock()
			attack.Check(t, "names looked up by: "+row.name, fmt.Sprint(row.lookup), fmt.Sprint(net1.lookups))
		})
	}
}

// If nobody can be asked, nothing is allowed; nor is another port than the one in the question.
func TestAskNobody(t *testing.T) {
	g := newGuest(t, Config{Rules: []Rule{askRule("a.example")}, Upstream: (&internet{}).upstream()})
	if c, err := g.dial("a.example", 443); err == nil {
		c.Close()
		t.Error("it connects")
	}
	if d := g.log.last(); d.Verdict != Denied || d.Reason != "not approved: nobody is there to be asked" ||
		d.Rule != "ask a.example" || d.Dialled != "" {
		t.Errorf("%+v", d)
	}
	p := &person{answers: map[string]Answer{"a.example:80": {Allow: true}}}
	g = newGuest(t, Config{Rules: []Rule{askRule("a.example")}, Upstream: (&internet{}).upstream(),
		Asker: NewAsker(p.ask)})
	for _, port := range []uint16{80, 443, 22} {
		if c, err := g.dial("a.example", port); err == nil {
			c.Close()
		}
	}
	if got := fmt.Sprint(p.heard()); got != "[a.example:80 a.example:443]" {
		t.Error(got)
	}
}

// A guest that connects to ever more names causes a limited number of questions, one at a time.
func TestAttackQuestions(t *testing.T) {
	p := &person{}
	g := newGuest(t, Config{Rules: []Rule{askRule("*.w.example")},
		Limits: Limits{Connections: 100, NewPerSecond: 1000, DNSPerSecond: 1000}, Upstream: (&internet{}).upstream(),
		Asker: NewAsker(p.ask)})
	var group sync.WaitGroup
	for i := range 3 * maxQuestions {
		addr, _ := g.lookup(fmt.Sprintf("n%d.w.example", i))
		group.Go(func() {
			if c, err := g.dialAddr(addr, 80); err == nil {
				c.Close()
				t.Error("it connects")
			}
		})
	}
	group.Wait()
	attack.Check(t, "questions of a run", fmt.Sprint(maxQuestions), fmt.Sprint(len(p.heard())))
	attack.Check(t, "questions at once", "1", fmt.Sprint(p.most))
	var flood sync.WaitGroup
	addr, _ := g.lookup("n0.w.example")
	for range 50 {
		flood.Go(func() {
			for range 200 {
				if c, err := g.dialAddr(addr, 80); err == nil {
					c.Close()
					t.Error("it connects")
				}
			}
		})
	}
	flood.Wait()
	attack.Check(t, "questions after 10000 more connections", fmt.Sprint(maxQuestions), fmt.Sprint(len(p.heard())))
	attack.Check(t, "answers that are kept after 10000 more connections", fmt.Sprint(maxQuestions),
		fmt.Sprint(len(g.n.forward.asker.known)))
	// The last is refused a moment before it is counted.
	testwait.Until(t, "no connection is open", func() bool { return g.n.forward.open.Load() == 0 })
	for _, name := range []string{"a\x1b[2J.w.example", "a\n.w.example", "\u0430pple.w.example", "a b.w.example",
		"w.example", "a.w.example.0x7f.1"} {
		addr, _ := g.lookup(name)
		attack.Check(t, fmt.Sprintf("an address for %q", name), netip.Addr{}.String(), addr.String())
	}
}

// A question ends with the run, and so does one that waits for its turn.
func TestAskEnds(t *testing.T) {
	begun := make(chan struct{}, 1)
	g := newGuest(t, Config{Rules: []Rule{askRule("*.w.example")}, Upstream: (&internet{}).upstream(),
		Asker: NewAsker(func(ctx context.Context, _ Question) Answer {
			begun <- struct{}{}
			<-ctx.Done()
			return Answer{None: true}
		})})
	var group sync.WaitGroup
	for _, name := range []string{"a.w.example", "b.w.example"} {
		addr, _ := g.lookup(name)
		group.Go(func() {
			if c, err := g.dialAddr(addr, 80); err == nil {
				c.Close()
				t.Error("it connects")
			}
		})
	}
	<-begun
	g.n.Cut() // returns when the flows have ended
	group.Wait()
	if left := g.n.Connections(); len(left) != 0 {
		t.Error(left)
	}
}
