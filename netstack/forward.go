package netstack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/unitask/unitask/netstack/broker"
)

// forwarder carries the guest's TCP connections to where they may go.
type forwarder struct {
	filter   filter
	names    *names
	upstream Upstream
	broker   *broker.Broker // nil: there is none
	limits   Limits
	log      *netlog
	ctx      context.Context // ends with cut, or with the network
	cut      context.CancelFunc

	rate     *rate.Limiter // new connections
	open     atomic.Int64
	up, down atomic.Int64 // bytes of the run

	mu     sync.Mutex
	closed bool
	flows  sync.WaitGroup
	live   map[*flow]Decision // the open ones, as they began
}

// connections are the flows that are open, the oldest first.
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

// lives notes that a flow is open, until the returned function is called.
func (f *forwarder) lives(fl *flow, d Decision) (ended func()) {
	d.Verdict = Allowed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live[fl] = d
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.live, fl)
	}
}

// enter counts a flow, unless the network is cut or closed.
func (f *forwarder) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.flows.Add(1)
	return true
}

// close resets every flow, waits until they have ended, and lets no further one begin.
func (f *forwarder) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cut()
	f.flows.Wait()
}

// handle is called in a goroutine of its own for each connection that the guest
// opens, before its handshake is answered: policy, resolve, check, dial; only then
// is it completed. A refusal is a reset in place of a handshake.
func (f *forwarder) handle(r *tcp.ForwarderRequest) {
	if !f.enter() {
		f.log.drop(DropCut)
		r.Complete(true)
		return
	}
	defer f.flows.Done()
	id := r.ID()
	to := netip.AddrPortFrom(netip.AddrFrom4(id.LocalAddress.As4()), id.LocalPort)
	d := Decision{Proto: "tcp", Addr: to.Addr().String(), Port: to.Port(), Verdict: Denied}
	deny := func(reason string) {
		d.Reason = reason
		f.log.decide(d)
		r.Complete(true)
	}
	t, rule := f.decide(to)
	d.Name = t.name
	if rule.rule != nil && rule.rule.loopback() {
		d.Addr = "127.0.0.1"
		if t.addr.IsValid() {
			d.Addr = t.addr.String()
		}
	}
	if rule.rule == nil {
		deny(rule.reason)
		return
	}
	d.Rule = rule.rule.Text
	switch {
	case !f.rate.Allow():
		deny("more than " + strconv.Itoa(f.limits.NewPerSecond) + " new connections a second")
		return
	case f.open.Add(1) > int64(f.limits.Connections):
		f.open.Add(-1)
		deny("more than " + strconv.Itoa(f.limits.Connections) + " connections at once")
		return
	}
	defer f.open.Add(-1)
	begin := time.Now()
	d.Time = begin
	upstream, dialled, err := f.upstream.dial(f.ctx, t, rule.rule)
	d.Dialled = dialled
	if err != nil {
		d.Reason, d.DurationMs = dialReason(err), time.Since(begin).Milliseconds()
		f.log.decide(d)
		// No answer is passed on as none: the guest's own patience decides.
		r.Complete(!isTimeout(err))
		return
	}
	var wq waiter.Queue
	ep, tcpErr := r.CreateEndpoint(&wq)
	if tcpErr != nil { // the guest gave up
		upstream.Close()
		r.Complete(true)
		return
	}
	r.Complete(false)
	fl := &flow{f: f, guest: gonet.NewTCPConn(&wq, ep), ep: ep, upstream: upstream, rule: rule.rule, target: t, begun: make(chan struct{})}
	ended := f.lives(fl, d)
	if f.broker != nil && !rule.rule.Raw && f.broker.Concerns(t.name) {
		err = fl.runBroker()
	} else {
		err = fl.run()
	}
	ended()
	var refused *refusal
	if d.Verdict = Allowed; errors.As(err, &refused) {
		d.Verdict, d.Reason = Denied, refused.reason
	}
	d.BytesUp, d.BytesDown, d.DurationMs = fl.up.Load(), fl.down.Load(), time.Since(begin).Milliseconds()
	f.log.decide(d)
}

// decide finds out what a connection is for.
func (f *forwarder) decide(to netip.AddrPort) (target, ruling) {
	addr, port := to.Addr(), to.Port()
	switch {
	case addr == GatewayAddr:
		r := f.filter.gateway(port)
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
		return t, f.filter.connect(t)
	}
	t := target{addr: addr, port: port}
	return t, f.filter.connect(t)
}

func dialReason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.Is(err, errNotPublic):
		return "leads to an address that is not public: --allow-tcp may name it"
	case errors.Is(err, errOwn):
		return "leads to an address of this host or of its network: --allow-tcp may name it"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case isTimeout(err):
		return "no answer"
	case errors.As(err, &dns):
		return "the name can't be resolved"
	}
	return printable(err.Error())
}

// flow is one connection, both of its sides open.
type flow struct {
	f        *forwarder
	guest    *gonet.TCPConn
	ep       tcpip.Endpoint
	upstream net.Conn
	rule     *Rule
	target   target
	up, down atomic.Int64

	begun chan struct{} // closed when the guest's beginning was found to be allowed
	tls   bool          // it was a TLS hello; valid once begun is closed

	aborted sync.Once
}

// begin says that the guest's first request or hello was judged and is allowed. Until
// then nothing goes either way.
func (fl *flow) begin(tls bool) {
	fl.tls = tls
	close(fl.begun)
}

// run carries both directions to their end. The first error ends both, by a reset
// on either side.
func (fl *flow) run() error {
	stop := context.AfterFunc(fl.f.ctx, fl.abort)
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
	n, err := c.w.Write(p)
	c.flow.Add(int64(n))
	return n, err
}

const copyBuffer = 64 << 10

func (fl *flow) copyUp(response <-chan bool) error {
	w := counted{fl.upstream, &fl.up, &fl.f.up, fl.f.limits.BytesUp, "up"}
	if fl.rule.Raw {
		_, err := io.CopyBuffer(w, onlyReader{fl.guest}, make([]byte, copyBuffer))
		return err
	}
	r := bufio.NewReaderSize(fl.guest, 4<<10)
	hello, isTLS, err := fl.beginning(r)
	switch {
	case errors.Is(err, io.EOF):
		return nil // nothing was said
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
			case <-fl.f.ctx.Done():
				return false, context.Cause(fl.f.ctx)
			}
		},
	}
	return requests.copy(w, r)
}

// beginning reads what the guest begins with, as far as it takes to tell HTTP from
// TLS: a hello as a whole, for a name that the rule allows, or one byte of a request,
// which is left in r. io.EOF says that the guest ends its side without a word.
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

// runBroker has the broker serve the flow: it reads requests, and sends its own. It
// takes the connection that is there, and dials the target again, by the same checks,
// when the server has closed that one.
func (fl *flow) runBroker() error {
	stop := context.AfterFunc(fl.f.ctx, fl.abort)
	defer stop()
	defer fl.upstream.Close()
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
		up:   counted{io.Discard, &fl.up, &fl.f.up, fl.f.limits.BytesUp, "up"},
		down: counted{fl.guest, &fl.down, &fl.f.down, fl.f.limits.BytesDown, "down"},
	}
	var first atomic.Bool
	err = fl.f.broker.Serve(fl.f.ctx, guest, broker.Target{Host: fl.target.name, Port: fl.target.port, TLS: isTLS}, func(ctx context.Context) (net.Conn, error) {
		if first.CompareAndSwap(false, true) {
			return fl.upstream, nil
		}
		if !fl.f.rate.Allow() {
			return nil, fmt.Errorf("more than %d new connections a second", fl.f.limits.NewPerSecond)
		}
		conn, _, err := fl.f.upstream.dial(ctx, fl.target, fl.rule)
		return conn, err
	}, fl.asked)
	switch reached := guest.reached.Load(); {
	case reached != nil:
		return *reached
	case err != nil:
		return refuse("%s", printable(err.Error()))
	}
	return nil
}

// asked logs a request that the broker has read.
func (fl *flow) asked(e broker.Exchange) {
	d := Decision{Proto: "http", Name: e.Host, Port: fl.target.port, Rule: e.Rule, Reason: printable(e.Reason), BytesUp: e.BytesUp, BytesDown: e.BytesDown,
		DurationMs: e.DurationMs, Method: printable(e.Method), Path: printable(e.Path), Status: e.Status, Secrets: e.Secrets, Redacted: e.Redacted}
	if e.Allowed {
		d.Verdict = Allowed
	}
	fl.f.log.decide(d)
}

// meteredConn is the guest's side as the broker has it: what was read of it already
// comes again, and both directions are counted.
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

// checkServerName holds a TLS hello against the rule.
func (fl *flow) checkServerName(sni string) error {
	if sni == "" {
		if fl.target.name == "" { // to an address that a rule names: there is nothing to say
			return nil
		}
		return refuse("a TLS hello without a server name")
	}
	name, ok := normalName(sni)
	if !ok || !fl.rule.allowsName(name) {
		return refuse("TLS for %s", printable(sni))
	}
	return nil
}

// checkHost holds a request's Host against the rule.
func (fl *flow) checkHost(field string) error {
	name, addr, ok := hostOf(field, fl.target.port)
	switch {
	case !ok:
	case addr.IsValid() && addr == fl.target.addr && fl.target.name == "":
		return nil
	case name != "" && fl.rule.allowsName(name):
		return nil
	}
	return refuse("HTTP for %s", printable(field))
}

// copyDown carries the answers. Its first bytes must be an answer to what the guest
// began with: a server that speaks first, or another protocol, is refused. They also
// tell whether an upgrade that was asked for took place.
func (fl *flow) copyDown(response chan<- bool) error {
	w := counted{fl.guest, &fl.down, &fl.f.down, fl.f.limits.BytesDown, "down"}
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

const (
	httpAnswer   = "HTTP/1."
	answerStatus = len("HTTP/1.1 101")
	answerRecord = 2 // a TLS record's type and the first byte of its version
	tlsAlert     = 0x15
	tlsVersion   = 0x03
)

// answerHead reads what a server's answer begins with: two bytes of TLS, or HTTP's up
// to its status. With io.EOF comes what there was before the server ended.
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

// answers says whether an answer in the guest's protocol may begin so.
func (fl *flow) answers(head []byte) bool {
	if fl.tls {
		return (head[0] == tlsRecord || head[0] == tlsAlert) && (len(head) < answerRecord || head[1] == tlsVersion)
	}
	n := min(len(head), len(httpAnswer))
	return string(head[:n]) == httpAnswer[:n]
}

// onlyReader hides a connection's WriterTo and ReaderFrom, which would go round the
// counting.
type onlyReader struct{ io.Reader }
