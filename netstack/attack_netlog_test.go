package netstack

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// gathered is the input of a log and of a tally.
type gathered struct {
	mu      sync.Mutex
	lines   []Decision
	tallied int
	cut     bool
	lost    func() error
}

func (g *gathered) netlog(uses *atomic.Int64) *netlog {
	l := newNetlog(func(d Decision) { g.lines = append(g.lines, d) },
		func(d Decision) { g.mu.Lock(); defer g.mu.Unlock(); g.tallied++ }, g.lost, uses, time.Now)
	l.cut = func() { g.cut = true }
	return l
}

// However many refusals a guest causes, a later use of a secret has its line, and every refusal is counted.
func TestAttackNetlogFlood(t *testing.T) {
	for _, flood := range []struct {
		name string
		n    int
		one  func(i int) Decision
	}{
		{"the same refusal", 200_000, func(int) Decision {
			return Decision{Proto: "tcp", Name: "evil.example", Port: 443,
				Reason: "no rule"}
		}},
		{"names, each another one", 200_000, func(i int) Decision {
			return Decision{Proto: "dns", Name: fmt.Sprint(i, ".example"), Reason: "no rule"}
		}},
		{"names that are allowed", 200_000, func(i int) Decision {
			return Decision{Proto: "dns", Name: fmt.Sprint(i, ".good.example"), Verdict: Allowed}
		}},
		{"refused requests, each another path", 200_000, func(i int) Decision {
			return Decision{Proto: "http", Name: "api.example", Method: "GET", Path: fmt.Sprint("/", i),
				Reason: "no rule allows this method and path"}
		}},
		{"connections of every kind", 50_000, func(i int) Decision {
			return Decision{Proto: "tcp", Addr: fmt.Sprint("93.184.", i>>8&255, ".", i&255), Port: uint16(i),
				Reason: fmt.Sprint("reason ", i)}
		}},
	} {
		g := &gathered{}
		l := g.netlog(new(atomic.Int64))
		for i := range flood.n {
			l.decide(flood.one(i))
		}
		l.decide(Decision{Proto: "http", Name: "api.example", Method: "GET", Path: "/", Verdict: Allowed,
			Secrets: []string{"KEY"}})
		l.close()
		uses, counted := 0, 0
		for _, d := range g.lines {
			if len(d.Secrets) > 0 {
				uses++
			} else {
				counted += max(1, d.Count)
			}
		}
		got := fmt.Sprintf("%d use, every refusal is counted", uses)
		if counted != flood.n || g.tallied != flood.n+1 || len(g.lines) > maxRefusals+maxKinds+10 || g.cut {
			got = fmt.Sprintf("%d use, %d of %d counted in %d lines, %d tallied, cut %t", uses, counted, flood.n, len(g.lines),
				g.tallied, g.cut)
		}
		attack.Check(t, "the use of a secret behind a flood of refusals: "+flood.name, "1 use, every refusal is counted", got)
	}
}

// If the disk accepts no more lines, the network is cut, and the tally records that.
func TestAttackNetlogLost(t *testing.T) {
	written := 0
	g := &gathered{}
	g.lost = func() error {
		if written++; written > 10 {
			return errors.New("no space left on device")
		}
		return nil
	}
	l := g.netlog(new(atomic.Int64))
	for i := range 20 {
		l.decide(Decision{Proto: "tcp", Name: fmt.Sprint(i, ".example"), Verdict: Allowed, Secrets: []string{"KEY"}})
	}
	l.close()
	attack.Check(t, "a guest that fills the disk of its netlog", "cut true, told 1 times",
		fmt.Sprintf("cut %v, told %d times", g.cut, g.tallied-20))
}

// A request that the guest cancels after it was sent is not a refusal: it has its line, with its path.
func TestAttackNetlogGivenUp(t *testing.T) {
	g := &gathered{}
	l := g.netlog(new(atomic.Int64))
	const n = 10 * maxAlike
	for i := range n {
		l.decide(Decision{Proto: "http", Name: "api.example", Method: "POST", Path: fmt.Sprint("/", i),
			Reason: "given up: context canceled", sent: true})
	}
	l.close()
	paths := map[string]bool{}
	for _, d := range g.lines {
		paths[d.Path] = true
	}
	attack.Check(t, "requests that are sent and given up, each another path", fmt.Sprint(n, " paths"),
		fmt.Sprint(len(paths), " paths"))
}

// If there is no room for the lines of allowed connections, nothing more is allowed, and the log says so. The networks
// of a session share the room.
func TestAttackNetlogFull(t *testing.T) {
	uses := new(atomic.Int64)
	left := maxUses
	for i := range 2 {
		g := &gathered{}
		l := g.netlog(uses)
		n := maxUses * 2 / 3
		for range n {
			l.decide(Decision{Proto: "http", Name: "api.example", Verdict: Allowed, Secrets: []string{"KEY"}})
			for waiting := maxWaiting; waiting >= maxWaiting/2; { // the disk keeps up
				l.lines.mu.Lock()
				waiting = l.lines.size
				l.lines.mu.Unlock()
			}
		}
		l.close()
		want := "goes on"
		if n > left {
			want = "is cut, and the log says so"
		}
		got := "goes on"
		if g.cut {
			got = "is cut, and the log does not say so"
		}
		if last := g.lines[len(g.lines)-1]; last.Proto == ProtoNetlog && last.Verdict == Denied && g.cut {
			got = "is cut, and the log says so"
		}
		left -= n
		attack.Check(t, fmt.Sprintf("a log that is full, network %d of a session", i+1), want, got)
	}
	// A network whose log has no room for an allowed request passes on no more data.
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"e.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:99": echo}}
	traffic := NewTraffic(0, 0)
	traffic.lines.Store(maxUses)
	var lines []Decision
	g := newGuest(t, Config{Upstream: net1.upstream(), Rules: []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true}},
		Traffic: traffic, Log: func(d Decision) { lines = append(lines, d) }})
	conn, err := g.dial("e.example", 99)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	select {
	case <-g.n.forward.ctx.Done():
	case <-time.After(time.Minute):
	}
	got := "refused"
	if conn, err := g.dial("e.example", 99); err == nil {
		conn.Close()
		got = "let through"
	}
	g.n.Close()
	if !slices.ContainsFunc(lines, func(d Decision) bool { return d.Proto == ProtoNetlog }) {
		got += ", and the log does not say why"
	}
	attack.Check(t, "a connection behind a log that is full", "refused", got)
}
