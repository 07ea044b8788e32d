package netstack

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/unitask/unitask/internal/attack"
)

// TestSetRules: what the rules of now do not allow has ended when they hold, and what they allow goes on.
func TestSetRules(t *testing.T) {
	echo, web := echoServer(t), webServer(t)
	net1 := &internet{names: map[string][]string{"db.internal": {"10.0.0.5"}, "cache.internal": {"10.0.0.6"}, "a.w.example": {"93.184.216.34"}, "b.w.example": {"93.184.216.34"}},
		servers: map[string]string{"10.0.0.5:5432": echo, "10.0.0.6:5432": echo, "93.184.216.34:80": web.Listener.Addr().String()}}
	db, cache := Rule{Text: "tcp db", Host: "db.internal", Port: 5432, Raw: true}, Rule{Text: "tcp cache", Host: "cache.internal", Port: 5432, Raw: true}
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
	if _, err := g.say("a.w.example", 80, httpGet("a.w.example")); err != nil || len(p.heard()) != 2 {
		t.Errorf("%v; asked %v: an answer is good for the rules that it was given under", err, p.heard())
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
	// The same host and port, where anything was spoken, and now HTTP only.
	g.log.n.SetRules([]Rule{{Text: "net cache", Host: "cache.internal", Port: 5432}})
	echoes(t, other, false)
}

// echoes says whether a connection to an echo server works.
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

// TestSetRulesRace: a guest that connects as fast as it can has nothing open, and gets nothing, once rules that
// allow nothing hold; whatever was being made then.
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
	net1 := &internet{names: map[string][]string{"db.internal": {"10.0.0.5"}}, servers: map[string]string{"10.0.0.5:5432": l.Addr().String()}}
	open := []Rule{{Text: "tcp db", Host: "db.internal", Port: 5432, Raw: true}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Rules: open, Limits: Limits{NewPerSecond: 1 << 20, DNSPerSecond: 1 << 20, Connections: 1 << 10}})
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
		time.Sleep(time.Millisecond) // for what the server is yet to read
		before := reached.Load()
		time.Sleep(2 * time.Millisecond)
		if after := reached.Load(); after != before {
			t.Errorf("%d bytes came under no rules", after-before)
		}
		g.log.n.SetRules(open)
		time.Sleep(time.Millisecond)
	}
	over.Store(true)
	group.Wait()
	if reached.Load() == 0 {
		t.Error("nothing came at all")
	}
}

// TestAttackHalfOpen: a guest that opens connections and never answers ours, or is gone, holds up nothing when its
// network is cut or closed.
func TestAttackHalfOpen(t *testing.T) {
	echo := echoServer(t)
	for _, row := range []struct {
		name string
		end  func(*Network)
	}{{"cut", (*Network).Cut}, {"closed", func(n *Network) { n.Close() }}, {"rules are replaced, then closed", func(n *Network) { n.SetRules(nil); n.Close() }}} {
		n, guest := attach(t, Config{Rules: []Rule{{Text: "tcp 10.0.0.5:7", Addr: netip.MustParseAddr("10.0.0.5"), Port: 7, Raw: true}},
			Upstream: (&internet{servers: map[string]string{"10.0.0.5:7": echo}}).upstream()})
		const syns = 20
		for i := range syns {
			ip := make([]byte, 40)
			header.IPv4(ip).Encode(&header.IPv4Fields{TotalLength: 40, TTL: 64, Protocol: 6, SrcAddr: tcpip.AddrFrom4(GuestAddr.As4()), DstAddr: tcpip.AddrFrom4([4]byte{10, 0, 0, 5})})
			header.IPv4(ip).SetChecksum(^header.IPv4(ip).CalculateChecksum())
			header.TCP(ip[20:]).Encode(&header.TCPFields{SrcPort: uint16(2000 + i), DstPort: 7, SeqNum: 1, DataOffset: 20, Flags: header.TCPFlagSyn, WindowSize: 1000})
			sendTo(t, guest, ethernet(0x0800, checksummed(ip)))
		}
		for range syns {
			if frame := receiveFrom(t, guest); len(frame) < 54 || frame[14+20+13]&0x12 != 0x12 {
				t.Fatalf("%s: no answer to a SYN: %x", row.name, frame)
			}
		}
		began := time.Now()
		row.end(n)
		seen := "at once"
		if took := time.Since(began); took > 5*time.Second {
			seen = took.String()
		}
		attack.Check(t, "20 connections that never answer; "+row.name, "at once", seen)
		n.Close()
	}
}
