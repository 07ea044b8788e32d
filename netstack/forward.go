package netstack

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/unitask/unitask/internal/publicaddr"
	"github.com/unitask/unitask/netstack/broker"
)

// forwarder connects the guest's TCP connections to allowed targets.
type forwarder struct {
	filter   atomic.Pointer[filter] // written with mu held
	names    *names
	upstream Upstream
	broker   *broker.Broker // nil if there is none
	asker    *Asker         // nil if nobody is asked
	tools    func(net.Conn) // nil if there are none
	limits   Limits
	log      *netlog
	ctx      context.Context // ends with cut, or with the network
	cut      context.CancelFunc

	rate *rate.Limiter // new connections
	open atomic.Int64
	// toolsOpen counts the connections of tools.
	toolsOpen atomic.Int64
	traffic   *Traffic

	mu     sync.Mutex
	closed bool
	flows  sync.WaitGroup
	live   map[*flow]Decision // open flows with their first entries
}

// connections returns the open flows, the oldest first.
func (f *forwarder) connections() []Decision {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]Decision, 0, len(f.live))
	for fl, d := range f.live {
		d.BytesUp, d.BytesDown, d.DurationMs = fl.up.Load(), fl.down.Load(), time.Since(d.Time).Milliseconds()
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Decision) int { return a.Time.Compare(b.Time) })
	return list
}

// lives registers an open flow, until the returned function is called. It fails if the rules have changed since
// the decision and now deny the flow.
func (f *forwarder) lives(fl *flow, d Decision) (ended func(), err error) {
	d.Verdict = Allowed
	f.mu.Lock()
	defer f.mu.Unlock()
	if reason := f.denies(fl); reason != "" {
		return nil, refuse("%s", reason)
	}
	f.live[fl] = d
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.live, fl)
		close(fl.over)
	}, nil
}

// denies returns why the current rules deny a flow, "" if they allow it. They must allow its target, all names that it
// is used for, and its protocol. An approved flow may continue where a new one would be asked about.
func (f *forwarder) denies(fl *flow) string {
	_, now := f.decide(fl.to)
	switch {
	case now.rule == nil:
		return now.reason
	case fl.rule.Raw && !now.rule.Raw:
		return "no rule allows anything but HTTP and TLS"
	case now.rule.Ask && !fl.approved:
		return "it is to be asked about"
	case fl.nameless && !fl.approved && f.namesAll(now.rule, fl.target):
		return "it names no server, and rules are about names now"
	}
	for _, to := range fl.led {
		if at, err := netip.ParseAddrPort(to); err == nil && f.denied(fl.target.port)(at.Addr()) {
			return errDenied.Error()
		}
	}
	for _, name := range fl.names {
		if now := f.filter.Load().connect(target{name: name, port: fl.target.port}); now.rule == nil {
			return name + ": " + now.reason
		}
	}
	return ""
}

// denied returns a function that reports whether a current rule denies an address at a port.
func (f *forwarder) denied(port uint16) func(netip.Addr) bool {
	return func(addr netip.Addr) bool {
		now := f.filter.Load()
		return now.denies(target{addr: addr.Unmap(), port: port}) != nil ||
			now.denies(target{addr: publicaddr.Unwrap(addr), port: port}) != nil
	}
}

// set changes the rules, and waits until the flows that they deny have ended.
func (f *forwarder) set(by *filter) {
	f.mu.Lock()
	f.filter.Store(by)
	f.asker.forget(func(q Question) bool { return by.connect(target{q.Name, q.Addr, q.Port}).rule == nil })
	var cut []*flow
	for fl := range f.live {
		if f.denies(fl) != "" {
			cut = append(cut, fl)
		}
	}
	f.mu.Unlock()
	for _, fl := range cut {
		fl.cut()
	}
	for _, fl := range cut {
		<-fl.over
	}
}

// enter counts a flow, unless the network is cut or closed.
func (f *forwarder) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.ctx.Err() != nil {
		return false
	}
	f.flows.Add(1)
	return true
}

// close resets every flow, waits until all have ended, and allows no further flow.
func (f *forwarder) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cut()
	f.flows.Wait()
}

// handle is called in its own goroutine for each connection that the guest opens, before the handshake is
// answered. It checks the policy, resolves, checks the address and dials; only then it completes the handshake. A
// refusal is a reset instead of a handshake.
func (f *forwarder) handle(r *tcp.ForwarderRequest) {
	if !f.enter() {
		f.log.drop(DropCut)
		r.Complete(true)
		return
	}
	defer f.flows.Done()
	id := r.ID()
	to := netip.AddrPortFrom(netip.AddrFrom4(id.LocalAddress.As4()), id.LocalPort)
	if f.tools != nil && to.Addr() == toolsAddr && to.Port() == toolsPort {
		f.serveTools(r)
		return
	}
	a := &attempt{f: f, r: r, to: to, line: Decision{Proto: "tcp", Addr: to.Addr().String(), Port: to.Port(),
		Verdict: Denied}}
	if why := a.admit(); why != "" {
		a.deny(why)
		return
	}
	defer f.open.Add(-1)
	if why := a.approve(); why != "" {
		a.deny(why)
		return
	}
	fl := a.connect()
	if fl == nil {
		return
	}
	fl.ctx, fl.cut = context.WithCancel(f.ctx)
	defer fl.cut()
	a.carry(fl)
}

// attempt is a connection attempt of the guest, until data flows.
type attempt struct {
	f     *forwarder
	r     *tcp.ForwarderRequest
	to    netip.AddrPort
	line  Decision // of the netlog
	begin time.Time

	target   target
	rule     *Rule
	approved bool      // it needs approval
	later    *Question // asked when a request arrives
}

// deny logs the reason, and resets the connection.
func (a *attempt) deny(reason string) {
	a.line.Reason = reason
	a.f.log.decide(a.line)
	a.r.Complete(true)
}

// admit finds the rule that allows the attempt, and counts the attempt; why is the reason for a denial.
func (a *attempt) admit() (why string) {
	f := a.f
	t, found := f.decide(a.to)
	a.target, a.rule, a.line.Name = t, found.rule, t.name
	if a.rule == nil {
		return found.reason
	}
	if a.rule.loopback() {
		a.line.Addr = "127.0.0.1"
		if t.addr.IsValid() {
			a.line.Addr = t.addr.String()
		}
	}
	a.line.Rule = a.rule.Text
	if !f.rate.Allow() {
		return "more than " + strconv.Itoa(f.limits.NewPerSecond) + " new connections a second"
	}
	if f.open.Add(1) > int64(f.limits.Connections) {
		f.open.Add(-1)
		return "more than " + strconv.Itoa(f.limits.Connections) + " connections at once"
	}
	return ""
}

// approve asks for approval if the rule requires it, or arranges that each request is asked about.
func (a *attempt) approve() (why string) {
	f, t := a.f, a.target
	if a.approved = a.rule.Ask; !a.approved {
		return ""
	}
	q := Question{Name: t.name, Port: t.port, Rule: a.rule.Text}
	if t.name == "" { // a name is checked when it is dialled: denied names are not looked up
		q.Addr = t.addr
		if err := f.upstream.checker(a.rule, f.denied(t.port))(t.addr); err != nil {
			return dialReason(err)
		}
	}
	if f.brokered(t, a.rule) && !f.asker.knows(q) {
		a.later = &q
	} else {
		said := f.asker.answer(f.ctx, q)
		if a.line.Reason = said.Why; !said.Allow {
			return "not approved: " + said.Why
		}
	}
	a.rule = q.approved()
	return ""
}

// connect dials, and completes the guest's handshake; it returns nil if there is no connection.
func (a *attempt) connect() *flow {
	f, t := a.f, a.target
	a.begin = time.Now()
	a.line.Time = a.begin
	var upstream net.Conn
	var dialled string
	var err error
	if a.later == nil {
		upstream, dialled, err = f.upstream.dial(f.ctx, t, a.rule, f.denied(t.port))
	}
	if a.line.Dialled = dialled; err != nil {
		a.line.Reason, a.line.Failure = dialReason(err), dialFailure(err)
		a.line.DurationMs = time.Since(a.begin).Milliseconds()
		f.log.decide(a.line)
		// If the server does not respond, the guest gets no response either: its own time limit applies.
		a.r.Complete(!isTimeout(err))
		return nil
	}
	giveUp := func() {
		if upstream != nil {
			upstream.Close()
		}
	}
	if _, now := f.decide(a.to); now.rule == nil { // early check; lives checks again
		giveUp()
		a.deny(now.reason)
		return nil
	}
	var wq waiter.Queue
	ep, tcpErr := f.handshake(a.r, &wq)
	if tcpErr != nil { // the guest ended its attempt
		giveUp()
		a.r.Complete(true)
		return nil
	}
	a.r.Complete(false)
	fl := &flow{f: f, guest: gonet.NewTCPConn(&wq, ep), ep: ep, upstream: upstream, rule: a.rule, question: a.later,
		approved: a.approved, target: t, to: a.to, line: a.line, begun: make(chan struct{}), over: make(chan struct{})}
	if fl.dialled.Store(dialled); dialled != "" {
		fl.led = []string{dialled}
	}
	return fl
}

// carry copies bytes both ways until the connection ends, and logs that.
func (a *attempt) carry(fl *flow) {
	f, d := a.f, a.line
	ended, err := f.lives(fl, d)
	if err != nil {
		fl.abort()
		d.Reason = err.Error()
		f.log.decide(d)
		return
	}
	if f.brokered(a.target, a.rule) {
		err = fl.runBroker()
	} else {
		err = fl.run()
	}
	ended()
	var refused *refusal
	if d.Verdict = Allowed; errors.As(err, &refused) {
		d.Verdict, d.Reason, d.quotes = Denied, refused.reason, refused.quotes
	}
	if d.Dialled == "" {
		d.Dialled = fl.leads()
	}
	d.BytesUp, d.BytesDown, d.DurationMs = fl.up.Load(), fl.down.Load(), time.Since(a.begin).Milliseconds()
	f.log.decide(d)
}

// brokered reports whether the broker serves a connection. A raw rule allows any protocol; rules by method and
// path require HTTP.
func (f *forwarder) brokered(t target, r *Rule) bool {
	return f.broker != nil && f.broker.Concerns(t.name) && (!r.Raw || f.broker.Ruled(t.name))
}

// namesAll reports whether TLS to an address must name its server. That is so if rules match names, whose servers
// a nameless hello could reach, and no rule names the address.
func (f *forwarder) namesAll(r *Rule, t target) bool {
	now := f.filter.Load()
	return r.Any && (f.broker != nil || now.deniesNames(t.port)) && !now.named(t)
}

// handshake answers the guest's handshake and waits until it completes or the network is cut. The stack alone
// would wait two minutes for a guest that never answers, or is gone.
func (f *forwarder) handshake(r *tcp.ForwarderRequest, wq *waiter.Queue) (tcpip.Endpoint, tcpip.Error) {
	done := make(chan struct{})
	defer close(done)
	defer context.AfterFunc(f.ctx, func() {
		for {
			wq.Notify(waiter.WritableEvents) // wakes the stack, which then sees that the network is cut; it may not listen yet
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})()
	return r.CreateEndpoint(wq)
}

// decide determines a connection's target and the ruling on it.
func (f *forwarder) decide(to netip.AddrPort) (target, ruling) {
	addr, port := to.Addr(), to.Port()
	switch {
	case addr == GatewayAddr:
		r := f.filter.Load().gateway(port)
		t := target{port: port, addr: addr}
		if r.rule != nil {
			t = target{port: port, addr: r.rule.Addr, name: r.rule.Host}
		}
		return t, r
	case synthetic.Contains(addr):
		name := f.names.name(addr)
		if name == "" {
			return target{addr: addr, port: port}, ruling{reason: "no name has this address"}
		}
		t := target{name: name, port: port}
		return t, f.filter.Load().connect(t)
	}
	t := target{addr: addr, port: port}
	return t, f.filter.Load().connect(t)
}

// Reasons why a connection was not made. They quote nothing from a guest, a proxy or a server.
const (
	ReasonRefused  = "connection refused"
	ReasonNoAnswer = "no answer"
)

// dialFailure returns the kind of failure of a dial error.
func dialFailure(err error) Failure {
	switch {
	case errors.Is(err, publicaddr.ErrNotPublic), errors.Is(err, publicaddr.ErrOwn):
		return FailureAddress
	case errors.Is(err, errDenied):
		return FailurePolicy
	case !errors.Is(err, syscall.ECONNREFUSED) && !isTimeout(err) && errors.As(err, new(*net.DNSError)):
		return FailureName
	}
	return FailureServer
}

func dialReason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.Is(err, publicaddr.ErrNotPublic):
		return "leads to an address that is not public: --allow-tcp may name it"
	case errors.Is(err, publicaddr.ErrOwn):
		return "leads to an address of this host or of its network: --allow-tcp may name it"
	case errors.Is(err, errDenied):
		return errDenied.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return ReasonRefused
	case isTimeout(err):
		return ReasonNoAnswer
	case errors.As(err, &dns):
		return "the name can't be resolved"
	}
	return printable(err.Error())
}

const copyBuffer = 64 << 10

const (
	httpAnswer   = "HTTP/1."
	answerStatus = len("HTTP/1.1 101")
	answerRecord = 2 // a TLS record's type and the first byte of its version
	tlsAlert     = 0x15
	tlsVersion   = 0x03
)
