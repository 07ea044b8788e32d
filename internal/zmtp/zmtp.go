// Package zmtp serves the sockets of ZeroMQ that a Jupyter kernel has. The protocol is ZMTP 3.0 with the mechanism NULL
// (rfc.zeromq.org/spec/23). It takes connections only, and bounds what each peer may send before it reads it. Libraries
// for Go reserve as much memory as a peer's frame claims to need. It authenticates nobody. Package jupyter calls it.
package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/accepting"
)

// Kind is a type of socket.
type Kind string

// The kinds of sockets.
const (
	Router Kind = "ROUTER" // talks to each peer by its identity
	Pub    Kind = "PUB"    // sends to the peers that have subscribed
	Rep    Kind = "REP"    // sends each message back
)

// partners are the types of the peers that a socket takes.
var partners = map[Kind]string{Router: "DEALER REQ ROUTER", Pub: "SUB XSUB", Rep: "REQ DEALER"}

// Limits of a socket.
const (
	maxPeers     = 64               // connections: a client has one
	maxFrames    = 64               // of a message: Jupyter has six, and buffers
	maxTopics    = 64               // subscriptions of a peer
	maxTopic     = 256              // bytes of a subscription
	maxCommand   = 4 << 10          // bytes of a command
	maxQueued    = 64 << 20         // bytes that wait for a peer to read
	maxReserved  = 1 << 20          // more of them, for what Publish may not drop
	maxQueuedSum = 256 << 20        // bytes that wait for all peers of a Pub
	frameCost    = 64               // bytes of memory that a frame uses beside its content
	chunk        = 64 << 10         // bytes of a frame that are read at a time: a length alone reserves no memory
	greetingTime = 10 * time.Second // for a peer's first words
	messageTime  = 30 * time.Second // for a message, once it has begun
	lingerTime   = time.Second      // in which peers get what waits, at the end
)

// Message is a list of frames.
type Message [][]byte

func (m Message) size() (n int) {
	for _, frame := range m {
		n += len(frame) + frameCost
	}
	return n
}

// Socket has many peers.
type Socket struct {
	kind     Kind
	most     int           // bytes of a message
	patience time.Duration // for a message
	listener net.Listener
	handle   func(identity string, m Message)
	work     sync.WaitGroup

	mu     sync.Mutex
	peers  map[string]*peer  // by their identities
	count  int               // peers so far
	conns  map[net.Conn]bool // also those that have not greeted yet
	held   int               // bytes of messages that are being read or handled
	closed bool
}

// Serve serves a socket. It calls handle for each message to a Router, from several goroutines, and lets the peer wait
// until handle returns. A peer that sends messages of more than most bytes is cut off.
func Serve(l net.Listener, kind Kind, most int, handle func(identity string, m Message)) *Socket {
	s := &Socket{kind: kind, most: most, patience: messageTime, listener: l, handle: handle, peers: map[string]*peer{},
		conns: map[net.Conn]bool{}}
	s.work.Go(s.accept)
	return s
}

func (s *Socket) accept() {
	for {
		conn, err := accepting.Next(s.listener.Accept)
		if err != nil {
			return
		}
		s.mu.Lock()
		full := s.closed || len(s.conns) >= maxPeers
		if !full {
			s.conns[conn] = true
			s.work.Go(func() { s.serve(conn) })
		}
		s.mu.Unlock()
		if full {
			conn.Close()
		}
	}
}

// serve serves a connection until its end.
func (s *Socket) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	_ = conn.SetDeadline(time.Now().Add(greetingTime))
	p := &peer{conn: conn, in: bufio.NewReader(conn), more: make(chan struct{}, 1), gone: make(chan struct{}),
		topics: map[string]int{}}
	if p.greet() != nil || p.meet(s.kind) != nil {
		return
	}
	if !s.add(p) {
		return
	}
	var writing sync.WaitGroup
	if p.ready(s.kind) == nil {
		s.limit(conn.SetDeadline, time.Time{})
		writing.Go(p.write)
		for s.take(p) == nil {
		}
	}
	s.remove(p)
	writing.Wait()
}

// limit sets the time limits of a connection's reads and writes, unless the socket is ending.
func (s *Socket) limit(set func(time.Time) error, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = set(at)
	}
}

// add adds a peer under its identity, or a new one. An identity that a peer already has is not given away.
func (s *Socket) add(p *peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if s.kind != Router || p.identity == "" || p.identity[0] == 0 {
		p.identity = fmt.Sprintf("\x00%d", s.count)
	}
	if s.closed || s.peers[p.identity] != nil {
		return false
	}
	s.peers[p.identity] = p
	return true
}

func (s *Socket) remove(p *peer) {
	s.mu.Lock()
	delete(s.peers, p.identity)
	s.mu.Unlock()
	p.end()
}

// take reads a message and handles it.
func (s *Socket) take(p *peer) error {
	held := 0
	defer func() { s.hold(-held) }()
	reserve := func(n int) error {
		if held += n; held > s.most+maxFrames*frameCost {
			held -= n
			return errTooMuch
		}
		return s.hold(n)
	}
	if _, err := p.in.Peek(1); err != nil { // a peer may be silent for as long as it likes
		return err
	}
	s.limit(p.conn.SetReadDeadline, time.Now().Add(s.patience))
	m, err := p.read(reserve)
	s.limit(p.conn.SetReadDeadline, time.Time{})
	if err != nil || m == nil {
		return err
	}
	switch s.kind {
	case Router:
		s.handle(p.identity, m)
	case Rep:
		if !p.queue(m, 4*(s.most+maxFrames*frameCost)) { // it reads no answers
			return errTooMuch
		}
	case Pub:
		return p.subscribe(m)
	}
	return nil
}

var errTooMuch = errors.New("the peer sends too much")

// hold counts bytes of all peers' messages: no more than two of the largest at a time.
func (s *Socket) hold(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held += n; n > 0 && s.held > 2*s.most+maxPeers*frameCost {
		return errTooMuch
	}
	return nil
}

// Send sends a message to a Router's peer. It reports whether there is such a peer. One that leaves too much unread is
// cut off.
func (s *Socket) Send(identity string, m Message) bool {
	s.mu.Lock()
	p := s.peers[identity]
	s.mu.Unlock()
	if p == nil {
		return false
	}
	if !p.queue(m, maxQueued) {
		p.conn.Close()
		return false
	}
	return true
}

// Publish sends a message to the peers of a Pub that have subscribed to its first frame. A message that may be dropped
// does not reach peers that leave too much unread; lost reports whether there are any. With another one, they are cut
// off.
func (s *Socket) Publish(m Message, mayDrop bool) (lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relieve()
	for _, p := range s.peers {
		switch {
		case !p.subscribed(m[0]):
		case mayDrop:
			lost = !p.queue(m, maxQueued) || lost
		case !p.queue(m, maxQueued+maxReserved):
			p.conn.Close()
		}
	}
	return lost
}

// relieve cuts off the peer that leaves the most unread, if all together leave too much. The caller has the lock.
func (s *Socket) relieve() {
	var worst *peer
	sum, most := 0, 0
	for _, p := range s.peers {
		n := p.unread()
		if sum += n; n > most {
			worst, most = p, n
		}
	}
	if sum > maxQueuedSum {
		worst.cutOff()
	}
}

// Close ends the socket. Peers get what waits for them if they read it within a second.
func (s *Socket) Close() {
	s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for conn := range s.conns {
		_ = conn.SetDeadline(time.Now().Add(lingerTime))
	}
	for _, p := range s.peers {
		p.end()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// greeting is the first words of ZMTP 3.0: signature, version, mechanism.
func greeting() []byte {
	text := make([]byte, 64)
	text[0], text[9], text[10] = 0xff, 0x7f, 3
	copy(text[12:], "NULL")
	return text
}

// property is a part of a READY command.
func property(name, value string) string {
	return string(rune(len(name))) + name + string(binary.BigEndian.AppendUint32(nil, uint32(len(value)))) + value
}

// properties reads the properties of a READY command, with names in lower case.
func properties(body []byte) (map[string]string, error) {
	all := map[string]string{}
	for len(body) > 0 {
		n := int(body[0])
		if len(body) < 1+n+4 {
			return nil, io.ErrUnexpectedEOF
		}
		name, rest := body[1:1+n], body[1+n:]
		size := binary.BigEndian.Uint32(rest)
		if uint64(size) > uint64(len(rest)-4) {
			return nil, io.ErrUnexpectedEOF
		}
		all[strings.ToLower(string(name))] = string(rest[4 : 4+size])
		body = rest[4+size:]
	}
	return all, nil
}
