package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/unitask/unitask/internal/accepting"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// MaxForwarded bounds the connections to a session's ports: those of its forwarded ports and of Dial together.
const MaxForwarded = 32

// Forward is a TCP port of a session's machine on this host's loopback: anything on this host may connect to it.
// Connections survive a pause, and data on one resumes the machine.
type Forward struct {
	// Port is the machine's port, Addr the host's address for it.
	Port int
	Addr netip.AddrPort

	s      *Session
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// errForwardClosed is the cause when a forwarded connection ends.
var errForwardClosed = errors.New("the forwarded port was closed")

// Forward forwards a port of the host's loopback to a TCP port of the machine, until the Forward is closed or the
// session ends. The server may listen on the machine's loopback. hostPort 0 picks a free port. A connection to a port
// where nothing listens is reset. The ceiling's forwardedPorts bounds the ports, MaxForwarded their connections.
func (s *Session) Forward(port, hostPort int) (*Forward, error) {
	for _, p := range []struct {
		field string
		is    int
		least int
	}{{"port", port, 1}, {"hostPort", hostPort, 0}} {
		if p.is < p.least || p.is > 65535 {
			return nil, policy.Bad(p.field, fmt.Sprint(p.is), "must be from %d to 65535", p.least)
		}
	}
	if err := s.hasCommands("forwarded ports"); err != nil {
		return nil, err
	}
	leave, err := s.ports.reserve(s.limits.ForwardedPorts)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: hostPort})
	if err != nil {
		leave()
		if errors.Is(err, syscall.EADDRINUSE) {
			err = policy.Bad(
				"hostPort",
				fmt.Sprint(hostPort),
				"is taken on this host: name another one, or none for any that is free",
			)
		}
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	f := &Forward{Port: port, Addr: l.Addr().(*net.TCPAddr).AddrPort(), s: s, cancel: cancel, done: make(chan struct{})}
	go func() {
		select {
		case <-s.done:
			cancel(s.gone())
		case <-ctx.Done():
		}
		l.Close()
	}()
	go func() {
		defer close(f.done)
		defer leave()
		f.accept(ctx, l)
		cancel(errForwardClosed)
	}()
	return f, nil
}

// ports are a session's forwarded ports. mu guards open.
type ports struct {
	mu      sync.Mutex
	open    int           // number of forwarded ports
	carried chan struct{} // one element per connection
}

// noPorts is the error under a ceiling that allows none.
func noPorts() error { return policy.Bad("forwardedPorts", "1", "the ceiling allows none") }

// reserve reserves a slot for a forwarded port; most is the number of slots.
func (p *ports) reserve(most int) (leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case most < 0:
		return nil, noPorts()
	case p.open >= most:
		return nil, &run.BusyError{
			What:  fmt.Sprintf("%d ports of this session are forwarded, which is the most: end one", p.open),
			After: afterSession,
		}
	}
	p.open++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.open--
	}, nil
}

// accept carries connections until the listener is closed, and returns when they have ended.
func (f *Forward) accept(ctx context.Context, l *net.TCPListener) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := accepting.Next(l.AcceptTCP)
		if err != nil {
			f.cancel(err)
			return
		}
		select {
		case f.s.ports.carried <- struct{}{}:
		default: // as on a host without room
			_ = conn.SetLinger(0)
			conn.Close()
			continue
		}
		all.Go(func() {
			defer func() { <-f.s.ports.carried }()
			_ = f.s.client.Connect(ctx, uint16(f.Port), conn, func() (func(), error) { return f.s.use(ctx) })
		})
	}
}

// Done is closed when the Forward has ended, by Close or with its session.
func (f *Forward) Done() <-chan struct{} { return f.done }

// Close ends the Forward and resets its connections. It may be called again.
func (f *Forward) Close() error {
	f.cancel(errForwardClosed)
	<-f.done
	return nil
}
