package mcp

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A connection belongs to a stranger until one of its requests has identified the caller. Strangers have few
// connections, for a short time, and compete for them. When all connections are used, an idle one of the caller
// with the most idle ones is closed.

// Limits of connections.
const (
	strangerTime     = 10 * time.Second // how long a connection may be a stranger's
	maxStrangers     = 512              // connections of strangers
	maxAddrStrangers = 128              // of one address, or of one /64 of IPv6
	maxCallerConns   = 256              // of one caller: enough for all its current requests, and some idle ones
	maxConns         = 4096             // of everybody, and half of this process's descriptors
)

// doors are the current connections.
type doors struct {
	most, strange, ofAddr, ofCaller int
	patience                        time.Duration

	mu        sync.Mutex
	all       int
	strangers map[netip.Addr]map[*door]bool
	waiting   int                       // all strangers
	callers   map[string]int            // connections of each caller
	idle      map[string]map[*door]bool // those of each caller without a request
}

func newDoors() *doors {
	d := &doors{most: maxConns, strange: maxStrangers, ofAddr: maxAddrStrangers, ofCaller: maxCallerConns,
		patience:  strangerTime,
		strangers: map[netip.Addr]map[*door]bool{}, callers: map[string]int{}, idle: map[string]map[*door]bool{}}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur/2 < maxConns {
		d.most = int(files.Cur / 2)
		d.strange = min(d.strange, d.most/2)
		d.ofAddr = min(d.ofAddr, d.most/4)
		d.ofCaller = min(d.ofCaller, d.most/8)
	}
	return d
}

// door is one connection.
type door struct {
	net.Conn
	of    *doors
	addr  netip.Addr
	timer *time.Timer

	known  bool
	caller string // the last known caller
	shut   bool
}

// open admits a connection as a stranger's. nil means that there is no room.
func (d *doors) open(c net.Conn) *door {
	at, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() { // a network has any number of addresses
		if prefix, err := addr.Prefix(64); err == nil {
			addr = prefix.Addr()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.strangers[addr]) >= d.ofAddr {
		d.turnOut(addr)
	}
	if d.waiting >= d.strange || d.all >= d.most && d.waiting > 0 {
		d.turnOut(d.crowd())
	}
	if d.all >= d.most {
		d.turnOutIdle()
	}
	if d.all >= d.most {
		return nil
	}
	one := &door{Conn: c, of: d, addr: addr}
	if d.strangers[addr] == nil {
		d.strangers[addr] = map[*door]bool{}
	}
	d.strangers[addr][one] = true
	d.all++
	d.waiting++
	one.timer = time.AfterFunc(d.patience, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !one.known {
			d.shut(one)
		}
	})
	return one
}

// crowd returns the address with the most strangers.
func (d *doors) crowd() (addr netip.Addr) {
	for a, of := range d.strangers {
		if len(of) > len(d.strangers[addr]) {
			addr = a
		}
	}
	return addr
}

// turnOut closes a random connection of an address's strangers. A client that has just connected, and is about to
// identify itself, most probably stays, however many connect.
func (d *doors) turnOut(addr netip.Addr) {
	for one := range d.strangers[addr] {
		d.shut(one)
		return
	}
}

// turnOutIdle closes an idle connection of the caller that has the most of them.
func (d *doors) turnOutIdle() {
	most := ""
	for caller, idle := range d.idle {
		if len(idle) > len(d.idle[most]) {
			most = caller
		}
	}
	for one := range d.idle[most] {
		d.shut(one)
		return
	}
}

// state is called when the first request of a connection begins, and when none is left.
func (d *doors) state(one *door, idle bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if one.shut || !one.known {
		return
	}
	d.busy(one)
	if idle {
		if d.idle[one.caller] == nil {
			d.idle[one.caller] = map[*door]bool{}
		}
		d.idle[one.caller][one] = true
	}
}

// busy notes that a connection is not idle.
func (d *doors) busy(one *door) {
	if delete(d.idle[one.caller], one); len(d.idle[one.caller]) == 0 {
		delete(d.idle, one.caller)
	}
}

// shut closes a connection. The caller holds d.mu.
func (d *doors) shut(one *door) {
	if d.empty(one) {
		_ = one.Conn.Close()
	}
}

// empty gives a connection's place to another one; false means that the place was already given.
func (d *doors) empty(one *door) bool {
	if one.shut {
		return false
	}
	one.shut = true
	one.timer.Stop()
	d.all--
	if one.known {
		d.leave(one)
	} else {
		d.forget(one)
	}
	return true
}

func (d *doors) forget(one *door) {
	d.waiting--
	if delete(d.strangers[one.addr], one); len(d.strangers[one.addr]) == 0 {
		delete(d.strangers, one.addr)
	}
}

func (d *doors) leave(one *door) {
	d.busy(one)
	if d.callers[one.caller]--; d.callers[one.caller] == 0 {
		delete(d.callers, one.caller)
	}
}

// introduce sets a connection's caller.
func (d *doors) introduce(one *door, caller string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if one.shut || one.known && one.caller == caller {
		return nil
	}
	if d.callers[caller] >= d.ofCaller {
		return &LimitError{Limit: "caller-connections", Most: d.ofCaller,
			Text: fmt.Sprintf("you have %d connections, which is the bound: close one", d.ofCaller)}
	}
	if one.known {
		d.leave(one)
	} else {
		d.forget(one)
	}
	one.known, one.caller = true, caller
	one.timer.Stop()
	d.callers[caller]++
	return nil
}

// Close gives the connection's place to another one.
func (one *door) Close() error {
	one.of.mu.Lock()
	one.of.empty(one)
	one.of.mu.Unlock()
	return one.Conn.Close()
}

// doorKey is the key of a connection's context for its door.
type doorKey struct{}

func withDoor(ctx context.Context, c net.Conn) context.Context {
	if one := doorOf(c); one != nil {
		return context.WithValue(ctx, doorKey{}, one)
	}
	return ctx
}

// doorOf returns the door of a server's connection, nil if there is none.
func doorOf(c net.Conn) *door {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	one, _ := c.(*door)
	return one
}

// noteState is a server's ConnState.
func noteState(c net.Conn, state http.ConnState) {
	if one := doorOf(c); one != nil && (state == http.StateIdle || state == http.StateActive) {
		one.of.state(one, state == http.StateIdle)
	}
}

// introduced notes the caller of a request's connection; the caller is known by now.
func (s *Server) introduced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if one, ok := r.Context().Value(doorKey{}).(*door); ok {
			if err := one.of.introduce(one, callerOf(r)); err != nil {
				w.Header().Set("Connection", "close")
				s.tooMany(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
