package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// peer is the other end of a connection.
type peer struct {
	conn     net.Conn
	in       *bufio.Reader
	identity string

	more chan struct{} // has an element if there is something new
	gone chan struct{} // closed when nothing more comes
	pong atomic.Bool   // an answer to a PING waits

	mu      sync.Mutex
	waiting []Message
	size    int // bytes of waiting
	over    bool
	topics  map[string]int
}

// greet exchanges greetings.
func (p *peer) greet() error {
	if _, err := p.conn.Write(greeting()); err != nil {
		return err
	}
	var text [64]byte
	if _, err := io.ReadFull(p.in, text[:]); err != nil {
		return err
	}
	if text[0] != 0xff || text[9]&1 == 0 || text[10] < 3 || !bytes.Equal(text[12:32], greeting()[12:32]) {
		return errors.New("no greeting of ZMTP 3 with NULL")
	}
	return nil
}

// meet reads who the peer is.
func (p *peer) meet(kind Kind) error {
	flags, body, err := p.frame(func(n int) error { return limited(n, maxCommand) })
	if err != nil {
		return err
	}
	name, rest := command(body)
	if flags&flagCommand == 0 || name != "READY" {
		return errors.New("no READY")
	}
	all, err := properties(rest)
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(partners[kind]), all["socket-type"]) {
		return fmt.Errorf("a %.20q at a %s", all["socket-type"], kind)
	}
	if p.identity = all["identity"]; len(p.identity) > 255 {
		return errTooMuch
	}
	return nil
}

// ready answers with our own READY. The peer sends no messages before it.
func (p *peer) ready(kind Kind) error {
	body := "\x05READY" + property("Socket-Type", string(kind))
	_, err := p.conn.Write(append([]byte{flagCommand, byte(len(body))}, body...))
	return err
}

// limited is an error if n is more than most.
func limited(n, most int) error {
	if n > most {
		return errTooMuch
	}
	return nil
}

// command splits a command into its name and the rest.
func command(body []byte) (name string, rest []byte) {
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return "", nil
	}
	n := int(body[0])
	return string(body[1 : 1+n]), body[1+n:]
}

// frame reads a frame. It calls reserve with a number of bytes before it reads as many.
func (p *peer) frame(reserve func(int) error) (flags byte, body []byte, err error) {
	if flags, err = p.in.ReadByte(); err != nil {
		return 0, nil, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, nil, fmt.Errorf("a frame with the flags %#x", flags)
	}
	var length [8]byte
	short := length[7:]
	if flags&flagLong != 0 {
		short = length[:]
	}
	if _, err := io.ReadFull(p.in, short); err != nil {
		return 0, nil, err
	}
	left := binary.BigEndian.Uint64(length[:])
	if err := reserve(frameCost); err != nil {
		return 0, nil, err
	}
	body = []byte{} // never nil: see encode
	for left > 0 {
		n := int(min(left, chunk))
		if err := reserve(n); err != nil {
			return 0, nil, err
		}
		at := len(body)
		body = append(body, make([]byte, n)...)
		if _, err := io.ReadFull(p.in, body[at:]); err != nil {
			return 0, nil, err
		}
		left -= uint64(n)
	}
	return flags, body, nil
}

// read reads a message; nil if it was a command.
func (p *peer) read(reserve func(int) error) (m Message, err error) {
	for {
		flags, body, err := p.frame(reserve)
		switch {
		case err != nil:
			return nil, err
		case flags&flagCommand != 0 && (flags&flagMore != 0 || len(m) > 0 || len(body) > maxCommand):
			return nil, errors.New("a command inside of a message")
		case flags&flagCommand != 0:
			p.obey(body)
			return nil, nil
		case len(m) == maxFrames:
			return nil, errTooMuch
		}
		if m = append(m, body); flags&flagMore == 0 {
			return m, nil
		}
	}
}

// obey answers a PING, if no answer waits already. Other commands mean nothing here.
func (p *peer) obey(body []byte) {
	if name, rest := command(body); name == "PING" && len(rest) >= 2 && !p.pong.Swap(true) {
		p.queue(Message{nil, append([]byte("\x04PONG"), rest[2:min(len(rest), 18)]...)}, maxQueued+maxReserved)
	}
}

// subscribe adds or removes a subscription.
func (p *peer) subscribe(m Message) error {
	if len(m) != 1 || len(m[0]) == 0 || len(m[0]) > maxTopic {
		return errors.New("no subscription")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	topic := string(m[0][1:])
	switch {
	case m[0][0] == 0:
		if p.topics[topic]--; p.topics[topic] <= 0 {
			delete(p.topics, topic)
		}
	case p.topics[topic] == 0 && len(p.topics) >= maxTopics:
		return errTooMuch
	default:
		p.topics[topic]++
	}
	return nil
}

func (p *peer) subscribed(to []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for topic := range p.topics {
		if bytes.HasPrefix(to, []byte(topic)) {
			return true
		}
	}
	return false
}

// queue adds a message to those that wait. It reports whether there is room, of most bytes.
func (p *peer) queue(m Message, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return true // nobody misses it
	}
	if p.size+m.size() > most {
		return false
	}
	p.size += m.size()
	p.waiting = append(p.waiting, m)
	p.wake()
	return true
}

// cutOff ends the connection, and forgets what waits.
func (p *peer) cutOff() {
	p.conn.Close()
	p.end()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting, p.size = nil, 0
}

// unread returns how many bytes wait.
func (p *peer) unread() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

func (p *peer) wake() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// end has the writer end once nothing waits.
func (p *peer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.over = true
		close(p.gone)
	}
}

// write writes what waits, until the end.
func (p *peer) write() {
	defer p.conn.Close()
	out := bufio.NewWriterSize(p.conn, chunk)
	for {
		var last bool
		select {
		case <-p.more:
		case <-p.gone:
			last = true
		}
		p.mu.Lock()
		list := p.waiting
		p.waiting = nil
		p.mu.Unlock()
		for _, m := range list {
			if encode(out, m) != nil {
				p.conn.Close() // so that the reader ends, too
				return
			}
			if m[0] == nil {
				p.pong.Store(false)
			}
			p.mu.Lock()
			p.size -= m.size()
			p.mu.Unlock()
		}
		if out.Flush() != nil || last {
			return
		}
	}
}

// encode writes a message. One that begins with a nil frame is a command.
func encode(out *bufio.Writer, m Message) error {
	command := byte(0)
	if m[0] == nil {
		m, command = m[1:], flagCommand
	}
	for i, frame := range m {
		flags := command
		if i < len(m)-1 {
			flags |= flagMore
		}
		if len(frame) > 255 {
			_ = out.WriteByte(flags | flagLong)
			_, _ = out.Write(binary.BigEndian.AppendUint64(nil, uint64(len(frame))))
		} else {
			_ = out.WriteByte(flags)
			_ = out.WriteByte(byte(len(frame)))
		}
		if _, err := out.Write(frame); err != nil {
			return err
		}
	}
	return nil
}
