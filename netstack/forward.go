package netstack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
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
)

// forwarder carries the guest's TCP connections to where they may go.
type forwarder struct {
	filter   filter
	names    *names
	upstream Upstream
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
	upstream, err := f.upstream.dial(f.ctx, t, rule.rule)
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
	fl := &flow{f: f, guest: gonet.NewTCPConn(&wq, ep), ep: ep, upstream: upstream, rule: rule.rule, target: t}
	err = fl.run()
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
		return "leads to an address that is not public"
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

	aborted sync.Once
}

// peeked says whether the flow must begin with HTTP or TLS.
func (fl *flow) peeked() bool {
	return !fl.rule.Raw && (fl.target.port == 80 || fl.target.port == 443)
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
	if !fl.peeked() {
		_, err := io.CopyBuffer(w, onlyReader{fl.guest}, make([]byte, copyBuffer))
		return err
	}
	if err := fl.guest.SetReadDeadline(time.Now().Add(peekTime)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(fl.guest, 4<<10)
	first, err := r.Peek(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil // nothing was said
	case err != nil:
		return slowHead(err)
	case first[0] == tlsRecord:
		name, hello, err := peekTLS(r)
		if err == nil {
			err = fl.checkServerName(name)
		}
		if err == nil {
			_, err = w.Write(hello)
		}
		if err == nil {
			err = fl.guest.SetReadDeadline(time.Time{})
		}
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(w, onlyReader{r}, make([]byte, copyBuffer))
		return err
	}
	requests := httpRequests{
		check:    fl.checkHost,
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
	case addr.IsValid() && (fl.rule.Any || fl.rule.Addr == addr) && fl.target.name == "":
		return nil
	case name != "" && fl.rule.allowsName(name):
		return nil
	}
	return refuse("HTTP for %s", printable(field))
}

// copyDown carries the answers. The beginning of the first one tells whether an
// upgrade that was asked for took place.
func (fl *flow) copyDown(response chan<- bool) error {
	w := counted{fl.guest, &fl.down, &fl.f.down, fl.f.limits.BytesDown, "down"}
	const status = len("HTTP/1.1 101")
	head := make([]byte, 0, status)
	for fl.peeked() && len(head) < status {
		n, err := fl.upstream.Read(head[len(head):status])
		if n > 0 {
			if _, err := w.Write(head[len(head) : len(head)+n]); err != nil {
				return err
			}
			head = head[:len(head)+n]
		}
		if err != nil {
			response <- false
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
	response <- bytes.HasPrefix(head, []byte("HTTP/1.")) && strings.HasSuffix(string(head), " 101")
	_, err := io.CopyBuffer(w, onlyReader{fl.upstream}, make([]byte, copyBuffer))
	return err
}

// onlyReader hides a connection's WriterTo and ReaderFrom, which would go round the
// counting.
type onlyReader struct{ io.Reader }
