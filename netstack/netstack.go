// Package netstack is the guest's only network, inside unitask's own process.
//
// The machine's network card ends in a stream socket; the other end is a
// Network. It answers ARP, DHCP and DNS at the frame layer, hands the guest's
// TCP to a gVisor stack, and drops everything else, counted by kind. There is
// no other way out: no tap device, no host route.
//
// The host dials into the guest through the same stack (DialGuest), and
// exchanges single datagrams with the guest's agent (control.go).
//
// The package trusts nothing from the guest: every frame has a size limit, and every parser checks the length first. A
// guest that does not read loses what it is sent, and blocks nobody.
package netstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/socketpair"
	"github.com/unitask/unitask/netstack/broker"
)

// The guest's network, the same for every machine: each machine has its own network.
var (
	GuestAddr   = netip.MustParseAddr(contract.GuestIP)
	GatewayAddr = netip.MustParseAddr(contract.GatewayIP) // also the guest's resolver
	toolsAddr   = netip.MustParseAddr(contract.ToolsIP)
	subnetMask  = net.IPMask(net.ParseIP(contract.Netmask).To4())

	guestMAC   = mustMAC(contract.GuestMAC)
	gatewayMAC = mustMAC(contract.GatewayMAC)
)

func mustMAC(s string) net.HardwareAddr {
	mac, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return mac
}

// Limits on the resources that a guest can use here.
const (
	mtu             = 1500
	maxFrame        = 9216      // a longer frame is not Ethernet: the link ends
	outQueue        = 1024      // the stack's packets that wait for the guest to read
	ownQueue        = 64        // our own answers that wait for it
	socketBuffer    = 256 << 10 // per direction and connection, in the stack
	maxHalfOpen     = 64        // current handshakes; more are ignored, the guest tries again
	timeWait        = time.Second
	dialGuestFirst  = 200 * time.Millisecond // time limit of the first attempt; each next one gets more
	dialGuestFactor = 2
)

// Limits bound what a guest can use of the network. Values that a policy decides have no default here: 0 means
// none.
type Limits struct {
	Connections int   // at once; each holds up to 4 buffers of 256 KiB
	BytesUp     int64 // from the guest in the whole run
	BytesDown   int64 // to the guest

	NewPerSecond int // new connections; 0 means 50, and as many at once
	DNSPerSecond int // queries; 0 means 50, and as many at once
}

// Traffic counts the bytes of a run, which Limits bounds. It may outlive a Network: a Network that continues
// another one takes over its count.
type Traffic struct{ up, down, lines atomic.Int64 }

// NewTraffic returns a Traffic that continues from a count.
func NewTraffic(up, down int64) *Traffic {
	t := &Traffic{}
	t.up.Store(up)
	t.down.Store(down)
	return t
}

// Bytes returns the bytes from the guest, and those to it.
func (t *Traffic) Bytes() (up, down int64) { return t.up.Load(), t.down.Load() }

func (l Limits) withDefaults() Limits {
	for field, value := range map[*int]int{&l.NewPerSecond: 50, &l.DNSPerSecond: 50} {
		if *field == 0 {
			*field = value
		}
	}
	return l
}

// Config configures a Network; New copies it.
type Config struct {
	// Rules are the targets that the guest may reach; none allows nothing.
	Rules    []Rule
	Limits   Limits
	Upstream Upstream
	// Asker, if not nil, approves connections that match a Rule with Ask. They wait for it; connections that the
	// broker serves wait at their requests. nil denies them.
	Asker *Asker
	// Tools, if not nil, serves the code's connections to port 80 of contract.ToolsIP. It returns when the connection has
	// ended, at the latest soon after it was closed. Several goroutines call it.
	Tools func(net.Conn)
	// Traffic, if not nil, holds the count that Limits bounds; otherwise it begins at 0.
	Traffic *Traffic
	// Broker, if not nil, serves the connections to its hosts, where a rule that is not raw allows them.
	Broker *broker.Broker
	// Capture, if not nil, receives the guest's frames. It may block: frames without room are then counted
	// (DropCapture).
	Capture *Capture
	// Log receives one Decision for everything that the guest was allowed. Of refusals it receives a limited
	// number (maxRefusals), then counts. One goroutine calls it, and it may block. When Close returns, it has
	// received everything, unless it blocks for flushTime. nil discards.
	Log func(Decision)
	// LogLost returns an error if what Log receives is lost; the network is cut then. It is called after each
	// line. nil means that nothing is lost.
	LogLost func() error
	// Tally receives every Decision, before any limit applies, from several goroutines. It must not block. nil
	// discards.
	Tally func(Decision)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Link, if not nil, is our end of a link (Pair, Detach) to an existing machine; New takes ownership. nil
	// makes a link, whose other end is GuestEnd.
	Link *os.File
}

// Network is one guest's network. All methods may be called from any goroutine.
type Network struct {
	link    *link
	stack   *stack.Stack
	ep      *channel.Endpoint
	log     *netlog
	control *control
	forward *forwarder
	queries *rate.Limiter

	cancel context.CancelFunc
	group  sync.WaitGroup
	closed sync.Once
	guest  *os.File
}

const nicID = 1

// quiet keeps gVisor from writing to standard error when a guest provokes it.
var quiet = sync.OnceFunc(func() { log.SetTarget(&log.Writer{Next: io.Discard}) })

// New returns a network and starts it. GuestEnd is for the machine.
func New(cfg Config) (*Network, error) {
	quiet()
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	ours, theirs := cfg.Link, (*os.File)(nil)
	if ours == nil {
		var err error
		if ours, theirs, err = Pair(); err != nil {
			return nil, err
		}
	}
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close() // nil is allowed
		return nil, fmt.Errorf("open network: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	traffic := cmp.Or(cfg.Traffic, &Traffic{})
	log := newNetlog(cfg.Log, cfg.Tally, cfg.LogLost, &traffic.lines, cfg.Now)
	n := &Network{
		link:    newLink(conn, newTap(cfg.Capture, log)),
		ep:      channel.New(outQueue, mtu, tcpip.LinkAddress(gatewayMAC)),
		log:     log,
		control: newControl(),
		cancel:  cancel,
		guest:   theirs,
	}
	n.forward = &forwarder{names: newNames(), upstream: cfg.Upstream.withDefaults(), broker: cfg.Broker, asker: cfg.Asker,
		limits: cfg.Limits.withDefaults(), traffic: traffic, log: n.log, live: map[*flow]Decision{}}
	n.forward.tools = cfg.Tools
	n.forward.filter.Store(&filter{append([]Rule(nil), cfg.Rules...)})
	n.forward.ctx, n.forward.cut = context.WithCancel(ctx)
	log.cut = n.forward.cut // enter checks for it
	n.forward.rate = rate.NewLimiter(rate.Limit(n.forward.limits.NewPerSecond), n.forward.limits.NewPerSecond)
	n.queries = rate.NewLimiter(rate.Limit(n.forward.limits.DNSPerSecond), n.forward.limits.DNSPerSecond)
	if n.stack, err = newStack(n.ep); err != nil {
		cancel()
		conn.Close()
		theirs.Close()
		n.link.tap.close()
		n.log.close()
		return nil, err
	}
	fwd := tcp.NewForwarder(n.stack, socketBuffer, maxHalfOpen, n.forward.handle)
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, fwd.HandlePacket)
	n.group.Go(func() { _ = n.link.readFrames(n.handle) })
	n.group.Go(func() { n.link.writeFrames(ctx, n.ep) })
	return n, nil
}

// Pair returns the two ends of a link: ours for Config.Link, theirs for the machine.
func Pair() (ours, theirs *os.File, err error) {
	if ours, theirs, err = socketpair.New("guest network"); err != nil {
		return nil, nil, fmt.Errorf("open network: %w", err)
	}
	return ours, theirs, nil
}

// Detach ends the network and returns its end of the link, for a network with another policy. The machine must be
// paused, so that the link is between two frames.
func (n *Network) Detach() (*os.File, error) {
	file, err := n.link.conn.(*net.UnixConn).File()
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("detach network: %w", err)
	}
	_ = n.link.conn.SetReadDeadline(time.Unix(1, 0))
	<-n.link.done
	n.Close()
	if !n.link.whole {
		file.Close()
		return nil, errors.New("detach network: in the middle of a frame")
	}
	return file, nil
}

// newStack returns a stack that speaks only TCP over IPv4, to any address.
func newStack(ep *channel.Endpoint) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	fail := func(what string, err tcpip.Error) (*stack.Stack, error) {
		s.Destroy()
		return nil, fmt.Errorf("open network: %s: %s", what, err)
	}
	sack, recovery, wait := tcpip.TCPSACKEnabled(true), tcpip.TCPRecovery(0), tcpip.TCPTimeWaitTimeoutOption(timeWait)
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: socketBuffer, Max: socketBuffer}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: socketBuffer, Max: socketBuffer}
	for _, opt := range []tcpip.SettableTransportProtocolOption{&sack, &recovery, &wait, &send, &receive} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			return fail("TCP options", err)
		}
	}
	if err := s.CreateNIC(nicID, ep); err != nil {
		return fail("create NIC", err)
	}
	addr := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddrFrom4(GatewayAddr.As4()).WithPrefix()}
	if err := s.AddProtocolAddress(nicID, addr, stack.AddressProperties{}); err != nil {
		return fail("address", err)
	}
	// The stack accepts every address that the guest may dial.
	if err := s.SetPromiscuousMode(nicID, true); err != nil {
		return fail("promiscuous mode", err)
	}
	if err := s.SetSpoofing(nicID, true); err != nil {
		return fail("spoofing", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nicID}})
	return s, nil
}

// GuestEnd returns the machine's end of the link, nil if New was given a Link. A process that inherits it has a
// copy. After that, ReleaseGuestEnd closes ours, so that the link ends when that process exits.
func (n *Network) GuestEnd() *os.File { return n.guest }

// ReleaseGuestEnd closes our copy of the machine's end. Close does it too.
func (n *Network) ReleaseGuestEnd() { n.guest.Close() }

// handle dispatches one frame. It must not block: it runs on the link's reader.
func (n *Network) handle(frame []byte) {
	kind, pkt := classify(frame)
	switch kind {
	case frameARP:
		n.reply(answerARP(pkt.payload))
	case frameTCP:
		n.inject(frame[header.EthernetMinimumSize:])
	case frameUDP:
		n.handleUDP(pkt)
	default:
		n.log.drop(pkt.drop)
	}
}

func (n *Network) handleUDP(p packet) {
	switch {
	case p.dstPort == dhcpServerPort:
		n.reply(answerDHCP(p.payload))
	case p.src != GuestAddr:
		n.log.drop(DropSource)
	case p.dst == GatewayAddr && p.dstPort == dnsPort:
		switch {
		case n.forward.ctx.Err() != nil:
			n.log.drop(DropCut)
			return
		case !n.queries.Allow():
			n.log.drop(DropDNS)
			return
		}
		answer, decision := answerDNS(n.forward.filter.Load(), n.forward.names, p.payload)
		if decision != nil {
			n.log.decide(*decision)
		}
		if answer != nil {
			n.reply(udpFrame(GatewayAddr, GuestAddr, dnsPort, p.srcPort, answer), "")
		}
	case p.dst == GatewayAddr && p.dstPort == ControlPort:
		n.control.receive(p.payload)
	default:
		n.log.drop(DropUDP)
	}
}

// reply sends one of our own frames, or counts the drop.
func (n *Network) reply(frame []byte, drop Drop) {
	if frame == nil {
		if drop != "" {
			n.log.drop(drop)
		}
		return
	}
	if !n.link.send(frame) {
		n.log.drop(DropOut)
	}
}

// inject passes an IP packet to the stack.
func (n *Network) inject(ip []byte) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(ip)})
	n.ep.InjectInbound(ipv4.ProtocolNumber, pkt)
	pkt.DecRef()
}

// DialGuest opens a TCP connection into the guest. A guest whose network card is not up yet loses the first
// attempt, and the stack would retry only after a second. So attempts are short at first and get longer, until
// ctx ends.
func (n *Network) DialGuest(ctx context.Context, port uint16) (net.Conn, error) {
	to := tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFrom4(GuestAddr.As4()), Port: port}
	from := tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFrom4(GatewayAddr.As4())}
	for wait := dialGuestFirst; ; wait *= dialGuestFactor {
		attempt, cancel := context.WithTimeout(ctx, wait)
		conn, err := gonet.DialTCPWithBind(attempt, n.stack, from, to, ipv4.ProtocolNumber)
		cancel()
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("dial guest port %d: %w", port, context.Cause(ctx))
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
	}
}

// Cut removes the guest's network permanently: every open connection is reset, and no further connection or lookup is
// possible. The host's own conversation with the guest (DialGuest, datagrams) continues. After Cut returns, no byte
// from the guest leaves. It may be called more than once.
func (n *Network) Cut() { n.forward.close() }

// SetRules replaces the rules for everything that the guest begins later. Connections that the new rules deny are
// reset, and answers about them forgotten: after SetRules returns, no byte reaches those targets. It may be
// called at any time, by one goroutine at a time.
func (n *Network) SetRules(rules []Rule) { n.forward.set(&filter{append([]Rule(nil), rules...)}) }

// Connections returns the guest's open connections, the oldest first, with their traffic so far.
func (n *Network) Connections() []Decision { return n.forward.connections() }

// Stats returns the number of drops, by kind.
func (n *Network) Stats() map[Drop]uint64 { return n.log.counts() }

// Frames returns the number of frames over the link, both ways.
func (n *Network) Frames() uint64 { return n.link.carried.Load() }

// Done returns a channel that is closed when the guest's end of the link is gone.
func (n *Network) Done() <-chan struct{} { return n.link.done }

// Close ends the network and every connection. It waits until no goroutine of it is running, and, for at most
// flushTime, until everything logged is written. It may be called more than once.
func (n *Network) Close() error {
	n.closed.Do(func() {
		n.cancel()
		n.link.conn.Close()
		n.guest.Close()
		n.forward.close()
		n.stack.Destroy()
		n.control.close()
		n.group.Wait()
		var flush sync.WaitGroup
		flush.Go(n.link.tap.close)
		flush.Go(n.log.close)
		flush.Wait()
	})
	return nil
}
