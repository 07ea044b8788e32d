package broker

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
)

// upstream is the server's side of one connection of the guest.
type upstream struct {
	ctx    context.Context // ends with Serve
	broker *Broker
	to     Target
	dial   func(context.Context) (net.Conn, error)
	proto  []string // the protocols to offer in ALPN

	mu     sync.Mutex
	closed bool
	ready  net.Conn // made by begin, and not used yet
	conns  []*hookedConn
	group  sync.WaitGroup // current dials
}

const (
	protoHTTP1 = "http/1.1"
	protoHTTP2 = "h2"
)

// begin connects and does the handshake; it returns the protocol that both sides speak.
func (u *upstream) begin(ctx context.Context, offered []string) (string, error) {
	for _, p := range []string{protoHTTP2, protoHTTP1} {
		if slices.Contains(offered, p) {
			u.proto = append(u.proto, p)
		}
	}
	if len(offered) > 0 && len(u.proto) == 0 {
		return "", u.badOffer(offered)
	}
	conn, err := u.connect(ctx)
	if err != nil {
		return "", err
	}
	u.ready = conn // no other goroutine uses u yet
	proto := conn.(*tls.Conn).ConnectionState().NegotiatedProtocol
	if proto != "" {
		u.proto = []string{proto}
	} else { // the server does not support ALPN
		u.proto = nil
		if slices.Contains(offered, protoHTTP1) {
			proto = protoHTTP1
		}
	}
	return proto, nil
}

// beginLater is begin for a server that is dialled only after a request is allowed. It chooses the protocol from
// the guest's offer.
func (u *upstream) beginLater(_ context.Context, offered []string) (string, error) {
	for _, p := range []string{protoHTTP1, protoHTTP2} { // the first is what every server speaks
		if slices.Contains(offered, p) {
			u.proto = []string{p}
			return p, nil
		}
	}
	if len(offered) > 0 {
		return "", u.badOffer(offered)
	}
	return "", nil
}

func (u *upstream) badOffer(offered []string) error {
	return fmt.Errorf("%s: the guest offers %q by ALPN: the broker speaks h2 and http/1.1", u.to.Host, offered)
}

// connect makes a connection that close closes.
func (u *upstream) connect(ctx context.Context) (net.Conn, error) {
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return nil, net.ErrClosed
	}
	u.group.Add(1)
	u.mu.Unlock()
	defer u.group.Done()
	conn, err := u.dial(ctx)
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	u.conns = slices.DeleteFunc(u.conns, (*hookedConn).ended)
	hooked := &hookedConn{Conn: conn, closed: make(chan struct{})}
	u.conns = append(u.conns, hooked)
	u.mu.Unlock()
	if !u.to.TLS {
		return hooked, nil
	}
	secured := tls.Client(hooked, &tls.Config{ServerName: u.to.Host, RootCAs: u.broker.cfg.Roots, NextProtos: u.proto,
		Time: u.broker.cfg.Now})
	if err := secured.HandshakeContext(ctx); err != nil {
		hooked.Close()
		return nil, fmt.Errorf("TLS with %s: %w", u.to.Host, err)
	}
	return secured, nil
}

// take returns begin's connection first, then makes new ones.
func (u *upstream) take(context.Context, string, string) (net.Conn, error) {
	u.mu.Lock()
	conn := u.ready
	u.ready = nil
	u.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	ctx, cancel := context.WithTimeout(u.ctx, helloTime)
	defer cancel()
	return u.connect(ctx)
}

// close closes every connection, and waits for the dials; u.ctx must have ended.
func (u *upstream) close() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.group.Wait()
	for _, c := range u.conns {
		c.Close()
	}
}

// transport carries the requests of one connection of the guest. Other connections of the guest never share its
// connections.
func (u *upstream) transport() *http.Transport {
	return &http.Transport{
		DialContext: u.take, DialTLSContext: u.take, ForceAttemptHTTP2: true, DisableCompression: true,
		MaxResponseHeaderBytes: maxHeaders, ExpectContinueTimeout: continueTime,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: maxUnread, MaxReceiveBufferPerConnection: 2 * maxUnread},
	}
}

// hookedConn signals when it is closed.
type hookedConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *hookedConn) ended() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

func (c *hookedConn) Close() (err error) {
	c.once.Do(func() {
		err = c.Conn.Close()
		close(c.closed)
	})
	return err
}
