package netstack

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testwait"
)

// TestSetRules checks that forbidden connections have ended when new rules take effect, and that allowed ones continue.
func TestSetRules(t *testing.T) {
	echo, web := echoServer(t), webServer(t)
	net1 := &internet{names: map[string][]string{"db.internal": {"10.0.0.5"}, "cache.internal": {"10.0.0.6"},
		"a.w.example": {"93.184.216.34"}, "b.w.example": {"93.184.216.34"}},
		servers: map[string]string{"10.0.0.5:5432": echo, "10.0.0.6:5432": echo,
			"93.184.216.34:80": web.Listener.Addr().String()}}
	db, cache := Rule{Text: "tcp db", Host: "db.internal", Port: 5432, Raw: true},
		Rule{Text: "tcp cache", Host: "cache.internal", Port: 5432, Raw: true}
	p := &person{answers: map[string]Answer{"a.w.example:80": {Allow: true}}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Rules: []Rule{db, askRule("a.w.example")}, Asker: NewAsker(p.ask)})
	open := func(name string) net.Conn {
		t.Helper()
		conn, err := g.dial(name, 5432)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		echoes(t, conn, true)
		return conn
	}
	had := open("db.internal")
	if _, err := g.say("a.w.example", 80, httpGet("a.w.example")); err != nil {
		t.Error(err)
	}

	g.log.n.SetRules([]Rule{db, cache, askRule("a.w.example")})
	echoes(t, had, true)
	other := open("cache.internal")
	if _, err := g.say("a.w.example", 80, httpGet("a.w.example")); err != nil || len(p.heard()) != 1 {
		t.Errorf("%v; asked %v: an answer is good as long as the rules have it asked", err, p.heard())
	}

	g.log.n.SetRules([]Rule{cache, hostRule("b.w.example")})
	if list := g.log.n.Connections(); len(list) != 1 || list[0].Name != "cache.internal" {
		t.Errorf("open: %+v", list)
	}
	echoes(t, had, false)
	echoes(t, other, true)
	for _, name := range []string{"db.internal", "a.w.example"} {
		if _, err := g.dial(name, 80); err == nil {
			t.Errorf("%s is reached", name)
		}
	}
	if _, err := g.say("b.w.example", 80, httpGet("b.w.example")); err != nil {
		t.Error(err)
	}
	// The same host and port: first any protocol, now only HTTP.
	g.log.n.SetRules([]Rule{{Text: "net cache", Host: "cache.internal", Port: 5432}})
	echoes(t, other, false)
}

// echoes reports whether a connection to an echo server works.
func echoes(t *testing.T, conn net.Conn, want bool) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(guestPatience))
	_, err := io.WriteString(conn, "x")
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	if (err == nil) != want {
		t.Errorf("it works: %t (%v), want %t", err == nil, err, want)
	}
}

// TestSetRulesRace: a guest connects as fast as it can. Once rules that allow nothing take effect, it has no open
// connection and gets nothing, whatever was being opened then.
func TestSetRulesRace(t *testing.T) {
	var reached atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for buf := make([]byte, 1); ; {
					if _, err := conn.Read(buf); err != nil {
						return
					}
					reached.Add(1)
				}
			}()
		}
	}()
	net1 := &internet{names: map[string][]string{"db.internal": {"10.0.0.5"}},
		servers: map[string]string{"10.0.0.5:5432": l.Addr().String()}}
	open := []Rule{{Text: "tcp db", Host: "db.internal", Port: 5432, Raw: true}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Rules: open,
		Limits: Limits{NewPerSecond: 1 << 20, DNSPerSecond: 1 << 20, Connections: 1 << 10}})
	addr, _ := g.lookup("db.internal")
	var over atomic.Bool
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for !over.Load() {
				conn, err := g.dialAddr(addr, 5432)
				if err != nil {
					continue
				}
				_, _ = io.WriteString(conn, "x")
				conn.Close()
			}
		})
	}
	for range 20 {
		g.log.n.SetRules(nil)
		if list := g.log.n.Connections(); len(list) > 0 {
			t.Errorf("open under no rules: %+v", list)
		}
		if !testwait.Steady(guestPatience, 5*time.Millisecond, reached.Load) { // the server has not yet read everything
			t.Errorf("bytes come under no rules, %d by now", reached.Load())
		}
		before := reached.Load()
		g.log.n.SetRules(open)
		testwait.Holds(guestPatience, func() bool { return reached.Load() != before }) // some get through
	}
	over.Store(true)
	group.Wait()
	if reached.Load() == 0 {
		t.Error("nothing came at all")
	}
}
