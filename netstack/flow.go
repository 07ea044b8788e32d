package netstack

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/unitask/unitask/netstack/broker"
)

// flow is one connection with both sides open.
type flow struct {
	f        *forwarder
	guest    *gonet.TCPConn
	ep       tcpip.Endpoint
	upstream net.Conn // nil if question is set
	rule     *Rule
	question *Question // asked for each request, before there is an upstream
	approved bool      // approved, or each request is asked about
	target   target
	to       netip.AddrPort  // as the guest sees it
	ctx      context.Context // ends with cut, or with the network
	cut      context.CancelFunc
	over     chan struct{} // closed when the flow has ended
	line     Decision      // the entry at its start; entries of requests are based on it
	dialled  atomic.Value  // string: current address of the connection to the server
	up, down atomic.Int64

	begun chan struct{} // closed when the guest's first data was allowed
	tls   bool          // it was a TLS hello; valid once begun is closed

	names    []string // allowed names beside the target's; guarded by the forwarder's mu
	nameless bool     // TLS to an address without a server name; guarded by the forwarder's mu
	led      []string // all addresses of its connections to the server, also the broker's; guarded by the forwarder's mu

	aborted sync.Once
}

// begin notes that the guest's first request or hello is allowed. Before that, no data flows in either direction.
func (fl *flow) begin(tls bool) {
	fl.tls = tls
	close(fl.begun)
}

// run copies both directions to their end. The first error ends both directions, with a reset on both sides.
func (fl *flow) run() error {
	stop := context.AfterFunc(fl.ctx, fl.abort)
	defer stop()
	defer fl.upstream.Close()
	defer fl.guest.Close()
	var group sync.WaitGroup
	errs := make([]error, 2)
	response := make(chan bool, 1) // whether the first answer switches protocols
	carry := func(i int, copy func() error, end func() error) {
		if errs[i] = copy(); errs[i] == nil {
			errs[i] = end()
		}
		if errs[i] != nil {
			fl.abort()
		}
	}
	group.Go(func() {
		carry(0, func() error { return fl.copyUp(response) }, func() error { return closeWrite(fl.upstream) })
	})
	group.Go(func() { carry(1, func() error { return fl.copyDown(response) }, fl.guest.CloseWrite) })
	group.Wait()
	for _, err := range errs {
		var refused *refusal
		if errors.As(err, &refused) {
			return err
		}
	}
	return errors.Join(errs...)
}

// abort resets both sides.
func (fl *flow) abort() {
	fl.aborted.Do(func() {
		fl.ep.Abort()
		if fl.upstream == nil {
			return
		}
		if c, ok := fl.upstream.(*net.TCPConn); ok {
			_ = c.SetLinger(0)
		}
		fl.upstream.Close()
	})
}

// counted passes bytes on and counts them; at the run's limit it refuses.
type counted struct {
	w          io.Writer
	flow, run  *atomic.Int64
	limit      int64
	whichLimit string
}

func (c counted) Write(p []byte) (int, error) {
	if c.run.Add(int64(len(p))) > c.limit {
		return 0, refuse("the run's limit of %d bytes %s is reached", c.limit, c.whichLimit)
	}
	c.flow.Add(int64(len(p))) // count first: whoever has the bytes finds them counted
	n, err := c.w.Write(p)
	c.flow.Add(int64(n - len(p)))
	return n, err
}

func (fl *flow) copyUp(response <-chan bool) error {
	w := counted{fl.upstream, &fl.up, &fl.f.traffic.up, fl.f.limits.BytesUp, "up"}
	if fl.rule.Raw {
		_, err := io.CopyBuffer(w, onlyReader{fl.guest}, make([]byte, copyBuffer))
		return err
	}
	r := bufio.NewReaderSize(fl.guest, 4<<10)
	hello, isTLS, err := fl.beginning(r)
	switch {
	case errors.Is(err, io.EOF):
		return nil // nothing was sent
	case err != nil:
		return err
	case isTLS:
		fl.begin(true)
		if _, err = w.Write(hello); err != nil {
			return err
		}
		_, err = io.CopyBuffer(w, onlyReader{r}, make([]byte, copyBuffer))
		return err
	}
	requests := httpRequests{
		check:    fl.checkHost,
		begin:    func() { fl.begin(false) },
		deadline: fl.guest.SetReadDeadline,
		switched: func() (bool, error) {
			select {
			case yes := <-response:
				return yes, nil
			case <-fl.ctx.Done():
				return false, context.Cause(fl.ctx)
			}
		},
	}
	return requests.copy(w, r)
}

// beginning reads the guest's first data, as much as needed to distinguish HTTP from TLS. That is a whole hello, for a
// name that the rule allows, or one byte of a request, which stays in r. io.EOF means that the guest closed its side
// without sending anything.
func (fl *flow) beginning(r *bufio.Reader) (hello []byte, isTLS bool, err error) {
	if err := fl.guest.SetReadDeadline(time.Now().Add(peekTime)); err != nil {
		return nil, false, err
	}
	first, err := r.Peek(1)
	switch {
	case isTimeout(err):
		return nil, false, refuseProtocol("nothing was said within %s", peekTime)
	case err != nil:
		return nil, false, err
	case first[0] != tlsRecord && !token(string(first)):
		return nil, false, refuseProtocol("the first byte is %#x", first[0])
	case first[0] != tlsRecord:
		return nil, false, nil
	}
	name, hello, err := peekTLS(r)
	if err == nil {
		err = fl.checkServerName(name)
	}
	if err == nil {
		err = fl.guest.SetReadDeadline(time.Time{})
	}
	return hello, true, err
}

// runBroker lets the broker serve the flow: the broker reads requests and sends its own. It uses the existing
// connection first. When the server has closed that, it dials the target again, with the same checks.
func (fl *flow) runBroker() error {
	stop := context.AfterFunc(fl.ctx, fl.abort)
	defer stop()
	to := broker.Target{Host: fl.target.name, Port: fl.target.port}
	if fl.question != nil {
		to.Ask = fl.ask
	} else {
		defer fl.upstream.Close()
	}
	defer fl.guest.Close()
	r := bufio.NewReaderSize(fl.guest, 4<<10)
	hello, isTLS, err := fl.beginning(r)
	if err == nil {
		err = fl.guest.SetReadDeadline(time.Time{})
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		fl.abort()
		return err
	}
	guest := &meteredConn{
		Conn: fl.guest, from: io.MultiReader(bytes.NewReader(hello), r),
		up:   counted{io.Discard, &fl.up, &fl.f.traffic.up, fl.f.limits.BytesUp, "up"},
		down: counted{fl.guest, &fl.down, &fl.f.traffic.down, fl.f.limits.BytesDown, "down"},
	}
	to.TLS = isTLS
	var first atomic.Bool
	err = fl.f.broker.Serve(fl.ctx, guest, to, func(ctx context.Context) (net.Conn, error) {
		begins := first.CompareAndSwap(false, true)
		if begins && fl.upstream != nil {
			return fl.upstream, nil
		}
		if !begins && !fl.f.rate.Allow() {
			return nil, fmt.Errorf("more than %d new connections a second", fl.f.limits.NewPerSecond)
		}
		return fl.dial(ctx)
	}, fl.asked)
	switch reached := guest.reached.Load(); {
	case reached != nil:
		return *reached
	case errors.As(err, new(*broker.GuestError)):
		return refuseText("%s", err.Error())
	case err != nil:
		return refuse("%s", printable(err.Error()))
	}
	return nil
}

// dial connects to the target again, unless the current rules deny the new address.
func (fl *flow) dial(ctx context.Context) (net.Conn, error) {
	conn, dialled, err := fl.f.upstream.dial(ctx, fl.target, fl.rule, fl.f.denied(fl.target.port))
	if err != nil {
		return nil, err
	}
	if reason := fl.leadsTo(dialled); reason != "" {
		conn.Close()
		return nil, errors.New(reason)
	}
	return conn, nil
}

// maxFlowAddresses bounds the addresses of one flow's connections during its life. A name may resolve to another
// address for each connection, and all are kept. No real server has so many.
const maxFlowAddresses = 256

// leadsTo notes the address of another connection to the server, or returns why it is denied. Later rule changes
// are checked against all noted addresses.
func (fl *flow) leadsTo(dialled string) (reason string) {
	fl.f.mu.Lock()
	defer fl.f.mu.Unlock()
	before := fl.led
	if !slices.Contains(fl.led, dialled) {
		if len(fl.led) == maxFlowAddresses {
			return "its connections lead to too many addresses"
		}
		fl.led = append(fl.led, dialled)
	}
	if reason = fl.f.denies(fl); reason != "" {
		fl.led = before
		return reason
	}
	fl.dialled.Store(dialled)
	return ""
}

// leads returns the current address of the connection to the server, "" if there is none yet.
func (fl *flow) leads() string {
	to, _ := fl.dialled.Load().(string)
	return to
}

// ask asks for approval of a request, unless a known answer applies.
func (fl *flow) ask(method, path string) (why string, err error) {
	q := *fl.question
	q.Method, q.Path = printable(method), printable(path)
	said := fl.f.asker.answer(fl.ctx, q)
	if !said.Allow {
		err = errors.New("not approved: " + said.Why)
	}
	return said.Why, err
}

// asked logs a request that the broker has read.
func (fl *flow) asked(e broker.Exchange) {
	d := Decision{Proto: "http", Name: e.Host, Addr: fl.line.Addr, Port: fl.target.port,
		Rule: cmp.Or(e.Rule, fl.line.Rule), Reason: printable(e.Reason), BytesUp: e.BytesUp, BytesDown: e.BytesDown,
		DurationMs: e.DurationMs, Method: printable(e.Method), Path: printable(e.Path), ALPN: e.ALPN, Status: e.Status,
		Secrets: e.Secrets, Redacted: e.Redacted, Exposed: e.Exposed}
	d.Dialled, d.sent = fl.leads(), e.Sent
	d.quotes = e.Reason != broker.DeniedByRule && e.Reason != broker.AllowedByNone
	if e.Allowed {
		d.Verdict = Allowed
	}
	fl.f.log.decide(d)
}

// meteredConn is the guest's side for the broker: data that was already read is read again first, and both
// directions are counted.
type meteredConn struct {
	net.Conn
	from     io.Reader
	up, down counted
	reached  atomic.Pointer[error] // the limit, once it is reached
}

func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if _, over := c.up.Write(p[:n]); over != nil {
		c.reached.CompareAndSwap(nil, &over)
		return 0, over
	}
	return n, err
}

func (c *meteredConn) Write(p []byte) (int, error) {
	n, err := c.down.Write(p)
	if errors.As(err, new(*refusal)) {
		c.reached.CompareAndSwap(nil, &err)
	}
	return n, err
}

// maxFlowNames bounds the names that one flow is used for; clients usually have a connection for each name.
const maxFlowNames = 16

// allows reports whether the flow may be used for a name, and notes the name: later rules are checked against it,
// too.
func (fl *flow) allows(name string) bool {
	fl.f.mu.Lock()
	defer fl.f.mu.Unlock()
	if !fl.rule.allowsName(name) || fl.f.filter.Load().denies(target{name: name, port: fl.target.port}) != nil {
		return false
	}
	switch {
	case name == fl.target.name || slices.Contains(fl.names, name):
	case len(fl.names) == maxFlowNames:
		return false
	default:
		fl.names = append(fl.names, name)
	}
	return true
}

// allowsNone reports whether TLS without a server name may use this flow, to an address, and notes it.
func (fl *flow) allowsNone() bool {
	fl.f.mu.Lock()
	defer fl.f.mu.Unlock()
	fl.nameless = true
	return !fl.f.namesAll(fl.rule, fl.target)
}

// checkServerName checks a TLS hello against the rule.
func (fl *flow) checkServerName(sni string) error {
	if sni == "" {
		switch {
		case fl.target.name != "":
			return refuse("a TLS hello without a server name")
		case !fl.allowsNone():
			return refuse("a TLS hello without a server name, where other rules are about names: --allow-net may name %s",
				fl.target.addr)
		}
		return nil // a rule names the address: any hello is fine
	}
	name, ok := normalName(sni)
	switch {
	case !ok:
		return refuseText("TLS for %s", sni)
	case !fl.allows(name):
		return refuse("TLS for %s", printable(sni))
	}
	return fl.checkBrokered(name)
}

// checkBrokered refuses a name of the broker on a connection for another name. A server with both names would
// answer there, and the broker would not read the requests.
func (fl *flow) checkBrokered(name string) error {
	if fl.f.broker != nil && name != fl.target.name && fl.f.broker.Concerns(name) {
		return refuse("%s on a connection for %s", name, cmp.Or(fl.target.name, fl.target.addr.String()))
	}
	return nil
}

// checkHost checks a request's Host against the rule.
func (fl *flow) checkHost(field string) error {
	name, addr, ok := hostOf(field, fl.target.port)
	switch {
	case !ok:
		return refuseText("HTTP for %s", field)
	case addr.IsValid() && addr == fl.target.addr && fl.target.name == "":
		return nil
	case name != "" && fl.allows(name):
		return fl.checkBrokered(name)
	}
	return refuse("HTTP for %s", printable(field))
}

// copyDown copies the answers. The first bytes must be an answer to the guest's protocol: a server that sends
// data first, or speaks another protocol, is refused. They also show whether a requested upgrade took place.
func (fl *flow) copyDown(response chan<- bool) error {
	w := counted{fl.guest, &fl.down, &fl.f.traffic.down, fl.f.limits.BytesDown, "down"}
	if !fl.rule.Raw {
		head, err := fl.answerHead()
		response <- err == nil && !fl.tls && strings.HasSuffix(string(head), " 101")
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if _, err := w.Write(head); err != nil {
			return err
		}
	}
	_, err := io.CopyBuffer(w, onlyReader{fl.upstream}, make([]byte, copyBuffer))
	return err
}

// answerHead reads the start of a server's answer: two bytes of TLS, or HTTP up to its status. With io.EOF it
// returns what the server sent before it closed.
func (fl *flow) answerHead() ([]byte, error) {
	head := make([]byte, 0, answerStatus)
	for {
		n, err := fl.upstream.Read(head[len(head):answerStatus])
		if head = head[:len(head)+n]; n > 0 {
			select {
			case <-fl.begun:
			default:
				return nil, refuseProtocol("the server spoke first")
			}
			if !fl.answers(head) {
				return nil, refuseProtocol("the server answers %+q", head)
			}
			if len(head) == answerStatus || fl.tls && len(head) >= answerRecord {
				return head, nil
			}
		}
		if err != nil {
			return head, err
		}
	}
}

// answers reports whether an answer in the guest's protocol may begin with head.
func (fl *flow) answers(head []byte) bool {
	if fl.tls {
		return (head[0] == tlsRecord || head[0] == tlsAlert) && (len(head) < answerRecord || head[1] == tlsVersion)
	}
	n := min(len(head), len(httpAnswer))
	return string(head[:n]) == httpAnswer[:n]
}

// onlyReader hides a connection's WriterTo and ReaderFrom, which would bypass the counting.
type onlyReader struct{ io.Reader }
