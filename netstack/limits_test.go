package netstack

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/unitask/unitask/internal/testwait"
)

// An open connection is listed with its bytes so far, and no longer after its end.
func TestConnections(t *testing.T) {
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"db.internal": {"10.0.0.5"}},
		servers: map[string]string{"10.0.0.5:5432": echo}}
	g := newGuest(t, Config{Upstream: net1.upstream(),
		Rules: []Rule{{Text: "tcp db", Host: "db.internal", Port: 5432, Raw: true}}})
	if list := g.log.n.Connections(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	conn, err := g.dial("db.internal", 5432)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "12345"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	list := g.log.n.Connections()
	if len(list) != 1 || list[0].Name != "db.internal" || list[0].Rule != "tcp db" || list[0].BytesUp != 5 ||
		list[0].BytesDown != 5 || list[0].Verdict != Allowed || list[0].Time.IsZero() {
		t.Errorf("%+v", list)
	}
	g.log.n.Cut()
	if list := g.log.n.Connections(); len(list) != 0 {
		t.Errorf("after the cut %+v", list)
	}
}

func TestLimits(t *testing.T) {
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"e.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:99": echo}}
	rules := []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true}}
	t.Run("connections", func(t *testing.T) {
		g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream(), Limits: Limits{Connections: 3}})
		for i := range 5 {
			c, err := g.dial("e.example", 99)
			if (err == nil) != (i < 3) {
				t.Errorf("connection %d: %v", i, err)
			}
			if err == nil {
				defer c.Close()
			}
		}
		if d := g.log.last(); d.Reason != "more than 3 connections at once" {
			t.Errorf("%+v", d)
		}
	})
	t.Run("new connections", func(t *testing.T) {
		g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream(), Limits: Limits{NewPerSecond: 4}})
		refused := 0
		for range 20 {
			c, err := g.dial("e.example", 99)
			if err != nil {
				refused++
				continue
			}
			c.Close()
		}
		if refused < 10 {
			t.Errorf("%d refused", refused)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream(), Limits: Limits{BytesUp: 1000}})
		if _, err := g.say("e.example", 99, strings.Repeat("x", 2000)); err == nil {
			t.Error("more went up than the limit")
		}
		if d := g.log.last(); !strings.Contains(d.Reason, "1000 bytes up") {
			t.Errorf("%+v", d)
		}
	})
	t.Run("queries", func(t *testing.T) {
		g := newGuest(t, Config{Rules: rules, Upstream: net1.upstream(), Limits: Limits{DNSPerSecond: 5}})
		q := ethernet(0x0800, packetIPv4(17, udpPacket(dnsQuery("x.example.", dnsmessage.TypeA)), nil))
		for range 100 {
			g.n.handle(q)
		}
		if g.n.Stats()[DropDNS] < 90 {
			t.Errorf("%v", g.n.Stats())
		}
	})
	t.Run("names", func(t *testing.T) {
		f, known := &filter{[]Rule{hostRule("*.w.example")}}, newNames()
		var last *Decision
		for i := range maxNames + 10 {
			_, last = answerDNS(f, known, dnsQuery(fmt.Sprintf("n%d.w.example.", i), dnsmessage.TypeA))
		}
		if last.Verdict != Denied || last.Reason != "too many names" || len(known.byAddr) != maxNames {
			t.Errorf("%+v, %d names", last, len(known.byAddr))
		}
	})
	t.Run("a header that never comes", func(t *testing.T) {
		waitForHeaders(t, echo)
	})
}

// waitForHeaders checks that a connection ends if its header never comes.
func waitForHeaders(t *testing.T, echo string) {
	t.Helper()
	if testing.Short() {
		t.Skip("waits for the peek's deadline; not in -short")
	}
	web := &internet{names: map[string][]string{"h.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:80": echo, "93.184.216.34:443": echo}}
	g := newGuest(t, Config{Rules: []Rule{hostRule("h.example")}, Upstream: web.upstream()})
	for port, start := range map[uint16]string{80: "GET / HTTP/1.1\r\nHost:", 443: "\x16\x03\x01\x02\x00\x01"} {
		c, err := g.dial("h.example", port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, start)
	}
	slow := func() (n int) {
		g.log.mu.Lock()
		defer g.log.mu.Unlock()
		for _, d := range g.log.list {
			if strings.Contains(d.Reason, "within") {
				n++
			}
		}
		return n
	}
	testwait.Holds(peekTime+500*time.Millisecond, func() bool { return slow() == 2 })
	if got := slow(); got != 2 {
		t.Errorf("got %d headers that took too long, want 2: %+v", got, g.log.list)
	}
}

// A peer that never reads, on either side, fills only its buffers, and ends with the network.
func TestForwardPeersThatNeverRead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // sends without end, reads nothing
				defer c.Close()
				junk := make([]byte, 64<<10)
				for {
					if _, err := c.Write(junk); err != nil {
						return
					}
				}
			}()
		}
	}()
	runtime.GC()
	before := runtime.NumGoroutine()
	t.Run("", func(t *testing.T) {
		net1 := &internet{names: map[string][]string{"e.example": {"93.184.216.34"}},
			servers: map[string]string{"93.184.216.34:99": l.Addr().String()}}
		g := newGuest(t, Config{Rules: []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true}},
			Upstream: net1.upstream()})
		for range 8 {
			c, err := g.dial("e.example", 99)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			for {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					break
				}
			}
		}
		begin := time.Now()
		g.n.Close()
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("Close took %s", took)
		}
	})
	testwait.Holds(2*time.Second, func() bool { return runtime.NumGoroutine() <= before+8 })
	if now := runtime.NumGoroutine(); now > before+8 { // the server's own
		t.Errorf("%d goroutines, %d before", now, before)
	}
}
