package netstack

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

func denyRule(host string) Rule {
	r := hostRule(host)
	r.Text, r.Deny = "deny "+host, true
	return r
}

func TestFilterDenies(t *testing.T) {
	wild := denyRule("w.example")
	wild.Wildcard = true
	local := Rule{Text: "tcp", Host: "localhost", Port: 5432, Raw: true}
	f := filter{[]Rule{{Any: true, Text: "any"}, denyRule("no.example"), {Host: "port.example", Port: 8443},
		{Host: "port.example", Port: 443, Deny: true}, wild, local,
		{Addr: netip.MustParseAddr("93.184.216.34"), Deny: true},
		{Addr: netip.MustParseAddr("127.0.0.1"), Port: 5432, Deny: true}}}
	for _, row := range []struct {
		t    target
		want string
	}{
		{target{name: "yes.example", port: 443}, ""},
		{target{name: "no.example", port: 443}, deniedRule},
		{target{name: "no.example", port: 22}, deniedRule},
		{target{name: "a.b.w.example", port: 80}, deniedRule},
		{target{name: "w.example", port: 80}, ""},
		{target{name: "port.example", port: 443}, deniedRule},
		{target{name: "port.example", port: 8443}, ""},
		{target{addr: netip.MustParseAddr("93.184.216.34"), port: 443}, deniedRule},
		{target{addr: netip.MustParseAddr("93.184.216.35"), port: 443}, ""},
	} {
		attack.Check(t, fmt.Sprintf("a denial and %v", row.t), row.want, f.connect(row.t).reason)
	}
	attack.Check(t, "a name that is denied", deniedRule, f.query("no.example").reason)
	attack.Check(t, "a name of which a port is denied", "", f.query("port.example").reason)
	attack.Check(t, "a port of the loopback that is denied by its other name", deniedRule, f.gateway(5432).reason)
	attack.Check(t, "nothing but a denial", noRule,
		(&filter{[]Rule{denyRule("no.example")}}).connect(target{name: "x.example", port: 443}).reason)
}

// Guests connect while the rules change. Once SetRules has returned, they have no connection to a denied host, and none
// of their data goes there; connections to others continue.
func TestAttackSetRules(t *testing.T) {
	var told, served atomic.Int64 // the denied host's received bytes, and its open connections
	serve := func(count *atomic.Int64) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if count != nil {
					served.Add(1)
				}
				go func() {
					defer c.Close()
					if count != nil {
						defer served.Add(-1)
					}
					buf := make([]byte, 1024)
					for {
						n, err := c.Read(buf)
						if count != nil {
							count.Add(int64(n))
						}
						if _, e := c.Write(buf[:n]); err != nil || e != nil {
							return
						}
					}
				}()
			}
		}()
		return l.Addr().String()
	}
	net1 := &internet{names: map[string][]string{"no.example": {"93.184.216.34"}, "yes.example": {"93.184.216.35"}},
		servers: map[string]string{"93.184.216.34:7": serve(&told), "93.184.216.35:7": serve(nil)}}
	raw := func(name string) Rule { return Rule{Text: "tcp " + name, Host: name, Port: 7, Raw: true} }
	open := []Rule{raw("no.example"), raw("yes.example")}
	g := newGuest(t, Config{Rules: open, Limits: Limits{Connections: 1000, NewPerSecond: 100000},
		Upstream: net1.upstream()})
	kept, err := g.dial("yes.example", 7)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	addr, _ := g.lookup("no.example")
	for range 5 {
		var group sync.WaitGroup
		stop := make(chan struct{})
		writeAndRead(&group, stop, g, addr)
		begin := told.Load()
		testwait.Until(t, "bytes reach the host", func() bool { return told.Load() >= begin+20 })
		g.n.SetRules(append([]Rule{denyRule("no.example")}, open...))
		left := 0
		for _, d := range g.n.Connections() {
			if d.Name == "no.example" {
				left++
			}
		}
		attack.Check(t, "connections to what is denied", "0", fmt.Sprint(left))
		testwait.Until(t, "the server has read all that was sent before", func() bool { return served.Load() == 0 })
		before := told.Load()
		late := testwait.Holds(50*time.Millisecond, func() bool { return told.Load() != before })
		attack.Check(t, "bytes that reach what is denied", "0",
			map[bool]string{true: fmt.Sprint(told.Load() - before), false: "0"}[late])
		close(stop)
		group.Wait()
		if _, err := io.WriteString(kept, "y"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(kept, make([]byte, 1)); err != nil {
			t.Fatal("a connection to what is allowed ended: ", err)
		}
		g.n.SetRules(open)
	}
}

// writeAndRead makes many connections write to the denied host, and read.
func writeAndRead(group *sync.WaitGroup, stop chan struct{}, g *guestOS, addr netip.Addr) {
	for range 8 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := g.dialAddr(addr, 7)
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				for err == nil {
					if _, err = c.Write([]byte("x")); err == nil {
						_, err = c.Read(make([]byte, 1))
					}
					select {
					case <-stop:
						err = io.EOF
					default:
					}
				}
				c.Close()
			}
		})
	}
}

// An answer that comes after its host was denied opens nothing, and is not remembered; an earlier one is forgotten.
func TestAttackSetRulesAsked(t *testing.T) {
	web := webServer(t)
	net1 := &internet{names: map[string][]string{"a.w.example": {"93.184.216.34"}, "b.w.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:80": web.Listener.Addr().String()}}
	begun, say := make(chan Question), make(chan Answer)
	g := newGuest(t, Config{Rules: []Rule{askRule("*.w.example")}, Upstream: net1.upstream(),
		Asker: NewAsker(func(ctx context.Context, q Question) Answer {
			begun <- q
			select {
			case a := <-say:
				return a
			case <-ctx.Done():
				return Answer{None: true}
			}
		})})
	yes := Answer{Allow: true}
	connect := func(name string) chan error {
		done := make(chan error, 1)
		addr, _ := g.lookup(name)
		go func() {
			c, err := g.dialAddr(addr, 80)
			if err == nil {
				c.Close()
			}
			done <- err
		}()
		return done
	}
	known := func() string {
		a := g.n.forward.asker
		a.mu.Lock()
		defer a.mu.Unlock()
		return fmt.Sprint(len(a.known))
	}
	b := connect("b.w.example")
	<-begun
	say <- yes
	if err := <-b; err != nil {
		t.Fatal(err)
	}
	a := connect("a.w.example")
	<-begun
	g.n.SetRules([]Rule{askRule("*.w.example"), denyRule("a.w.example")})
	attack.Check(t, "answers about what is not denied", "1", known())
	say <- yes
	if err := <-a; err == nil {
		t.Error("an answer that is too late opens a connection")
	}
	attack.Check(t, "answers after one that was too late", "1", known())
	g.n.SetRules([]Rule{askRule("*.w.example"), denyRule("b.w.example")})
	attack.Check(t, "answers about what is denied", "0", known())
	g.n.SetRules([]Rule{askRule("*.w.example")})
	b = connect("b.w.example")
	if q := <-begun; q.Name != "b.w.example" {
		t.Error(q)
	}
	say <- Answer{}
	if err := <-b; err == nil {
		t.Error("it connects")
	}
}

// When a name is denied, its open connections end, wherever they lead: to an address, or to another name.
func TestAttackSetRulesNames(t *testing.T) {
	server := newScripted(t, "", "\x15\x03\x03\x00\x02\x02\x28")
	web := newScripted(t, "", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	const addr = "93.184.216.34"
	net1 := &internet{names: map[string][]string{"a.w.example": {addr}},
		servers: map[string]string{addr + ":443": server.addr, addr + ":80": web.addr}}
	everything, wild := Rule{Text: "any", Any: true}, Rule{Text: "w", Host: "w.example", Wildcard: true}
	hello := func(names ...string) string {
		if len(names) == 0 {
			return records(clientHello(), 1<<14)
		}
		return records(clientHello(serverNames(names...)), 1<<14)
	}
	get := func(names ...string) (all string) {
		for _, name := range names {
			all += "GET / HTTP/1.1\r\nHost: " + name + "\r\n\r\n"
		}
		return all
	}
	here := Rule{Text: "addr", Addr: netip.MustParseAddr(addr)}
	elsewhere := denyRule("no.example")
	elsewhere.Port = 8443
	for _, c := range []struct {
		name, to string
		port     uint16
		say      string
		open     []Rule
		then     Rule
		want     int
	}{
		{"TLS to an address", addr, 443, hello("no.example"), []Rule{everything}, denyRule("no.example"), 0},
		{"TLS to an address, for another", addr, 443, hello("yes.example"), []Rule{everything}, denyRule("no.example"), 1},
		{"TLS to an address, denied at another port", addr, 443, hello("no.example"), []Rule{everything}, elsewhere, 1},
		{"TLS to an address, for nobody", addr, 443, hello(), []Rule{everything}, denyRule("no.example"), 0},
		{"TLS to an address that a rule names, for nobody", addr, 443, hello(), []Rule{here, everything},
			denyRule("no.example"), 1},
		{"TLS to another name", "a.w.example", 443, hello("b.w.example"), []Rule{wild}, denyRule("b.w.example"), 0},
		{"HTTP to an address", addr, 80, get("no.example"), []Rule{everything}, denyRule("no.example"), 0},
		{"HTTP to an address, for another since", addr, 80, get("no.example", "yes.example"), []Rule{everything},
			denyRule("no.example"), 0},
		{"HTTP to an address, by that", addr, 80, get(addr), []Rule{everything}, denyRule("no.example"), 1},
	} {
		g := newGuest(t, Config{Rules: c.open, Upstream: net1.upstream()})
		before := len(server.received()) + len(web.received())
		conn, err := g.dial(c.to, c.port)
		if err != nil {
			t.Fatal(c.name, err)
		}
		_, _ = io.WriteString(conn, c.say)
		testwait.Holds(guestPatience, func() bool { return len(server.received())+len(web.received()) >= before+len(c.say) })
		g.n.SetRules(append([]Rule{c.then}, c.open...))
		attack.Check(t, "open once a name is denied: "+c.name, fmt.Sprint(c.want), fmt.Sprint(len(g.n.Connections())))
		conn.Close()
	}
	// A flow remembers a limited number of names.
	g := newGuest(t, Config{Rules: []Rule{everything}, Upstream: net1.upstream()})
	var names []string
	for i := range maxFlowNames + 1 {
		names = append(names, fmt.Sprintf("n%d.example", i))
	}
	d := g.decision(func() { g.sayAndEnd(addr, 80, get(names...)) })
	attack.Check(t, "one connection for 17 names", fmt.Sprintf("denied: HTTP for n%d.example", maxFlowNames),
		fmt.Sprint(d.Verdict, ": ", d.Reason))
}

// A denied address can't be reached by a name that leads there, and open connections to it by a name end.
func TestAttackDeniedAddress(t *testing.T) {
	const bad, good = "93.184.216.34", "93.184.216.35"
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"a.example": {bad}, "both.example": {bad, good},
		"mapped.example": {"64:ff9b::93.184.216.34"}, "good.example": {good}},
		servers: map[string]string{bad + ":7": echo, good + ":7": echo, "[64:ff9b::5db8:d822]:7": echo}}
	var open []Rule
	for _, name := range []string{"a.example", "both.example", "mapped.example", "good.example"} {
		open = append(open, Rule{Text: "tcp " + name, Host: name, Port: 7, Raw: true})
	}
	open = append(open, Rule{Text: "any", Any: true, Port: 8443})
	denied := Rule{Text: "deny", Addr: netip.MustParseAddr(bad), Deny: true}
	elsewhere := denied
	elsewhere.Port = 8
	g := newGuest(t, Config{Rules: append([]Rule{denied}, open...), Upstream: net1.upstream(),
		Limits: Limits{NewPerSecond: 1000}})
	for _, c := range []struct {
		name, want string
		port       uint16
	}{
		{"a.example", "denied: " + errDenied.Error(), 7},
		{"a.example", "denied: " + errDenied.Error(), 8443},
		{"mapped.example", "denied: " + errDenied.Error(), 7},
		{"both.example", "allowed: ", 7},
		{"good.example", "allowed: ", 7},
	} {
		d := g.decision(func() { g.sayAndEnd(c.name, c.port, "x") })
		attack.Check(t, fmt.Sprintf("an address that is denied, by %s on port %d", c.name, c.port), c.want,
			fmt.Sprint(d.Verdict, ": ", d.Reason))
		if d.Verdict == Allowed && d.Dialled != good+":7" {
			t.Errorf("%+v", d)
		}
	}
	for _, c := range []struct {
		name string
		then Rule
		want bool
	}{{"a.example", denied, false}, {"mapped.example", denied, false}, {"a.example", elsewhere, true},
		{"good.example", denied, true}} {
		g.n.SetRules(open)
		conn, err := g.dial(c.name, 7)
		if err != nil {
			t.Fatal(c.name, err)
		}
		echoes(t, conn, true)
		g.n.SetRules(append([]Rule{c.then}, open...))
		attack.Check(t, fmt.Sprintf("open by %s once an address is denied, port %d", c.name, c.then.Port), fmt.Sprint(c.want),
			fmt.Sprint(len(g.n.Connections()) == 1))
		echoes(t, conn, c.want)
		conn.Close()
		testwait.Until(t, "no connection is left", func() bool { return len(g.n.Connections()) == 0 })
	}
}

// The broker may connect a flow more than once, to the name's current address. Each address is checked against the
// current rules, and a denied one is not recorded as the flow's target.
func TestAttackDeniedAddresses(t *testing.T) {
	const first, second = "93.184.216.34", "93.184.216.35"
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"a.example": {first}}, rebind: map[string][]string{"a.example": {second}},
		servers: map[string]string{first + ":443": echo, second + ":443": echo}}
	allow := Rule{Text: "net a.example", Host: "a.example"}
	f := &forwarder{names: newNames(), upstream: net1.upstream().withDefaults()}
	set := func(deny ...string) {
		rules := []Rule{allow}
		for _, a := range deny {
			rules = append(rules, Rule{Text: "deny", Addr: netip.MustParseAddr(a), Deny: true})
		}
		f.filter.Store(&filter{rules})
	}
	set()
	at, _ := f.names.addr("a.example")
	fl := &flow{f: f, target: target{name: "a.example", port: 443}, to: netip.AddrPortFrom(at, 443), rule: &allow}
	for range 2 {
		conn, err := fl.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if fl.leads() != second+":443" {
		t.Fatalf("it leads to %q", fl.leads())
	}
	for _, denied := range []string{first, second} {
		set(denied)
		attack.Check(t, "a flow with a connection to "+denied+", which is denied now", errDenied.Error(), f.denies(fl))
	}
	set("93.184.216.36")
	attack.Check(t, "a flow, where another address is denied", "", f.denies(fl))
	fl.led, f.upstream.Dial = nil, func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
		set(second) // until it is connected
		return net1.upstream().Dial(ctx, at)
	}
	fl.dialled.Store("")
	_, err := fl.dial(t.Context())
	attack.Check(t, "an address that is denied while it is dialled", errDenied.Error(), fmt.Sprint(err))
	attack.Check(t, "what is noted of it", "", fl.leads()+strings.Join(fl.led, " "))
	set()
	for i := range maxFlowAddresses {
		if reason := fl.leadsTo(fmt.Sprintf("93.184.%d.%d:443", i/256, i%256)); reason != "" {
			t.Fatalf("address %d: %s", i, reason)
		}
	}
	attack.Check(t, "an address beyond those that a flow may lead to", "its connections lead to too many addresses",
		fl.leadsTo("93.184.216.34:443"))
	attack.Check(t, "one of those again", "", fl.leadsTo("93.184.0.7:443"))
}
