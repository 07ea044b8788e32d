package debug

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// stub speaks gdb's remote protocol (gdb's manual, appendix E) with QEMU, as far as stepping and breakpoints need
// it.
type stub struct {
	conn net.Conn

	mu      sync.Mutex // one request at a time
	packets chan string
}

// maxPacket bounds a packet from QEMU, which announces 4 KiB.
const maxPacket = 64 << 10

func newStub(conn net.Conn) *stub {
	s := &stub{conn: conn, packets: make(chan string, 64)}
	go s.read() // until the connection ends
	return s
}

// read delivers the packets and drops everything between them (acknowledgements).
func (s *stub) read() {
	defer close(s.packets)
	r := bufio.NewReaderSize(s.conn, maxPacket)
	for {
		b, err := r.ReadByte()
		if err != nil {
			return
		}
		if b != '$' {
			continue
		}
		packet, err := r.ReadSlice('#') // of the buffer's size at most
		if err != nil {
			return
		}
		body := string(packet)
		if _, err := r.Discard(2); err != nil { // the checksum: the socket loses nothing
			return
		}
		if err := s.write("+"); err != nil {
			return
		}
		select {
		case s.packets <- strings.TrimSuffix(body, "#"):
		default: // unrequested: a stop that QMP also reports
		}
	}
}

// stubPatience bounds QEMU's time for an answer, and for reading what is sent.
const stubPatience = 5 * time.Second

// write sends all of a text; if that fails, it closes the connection.
func (s *stub) write(text string) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(stubPatience))
	_, err := s.conn.Write([]byte(text))
	if err != nil {
		s.conn.Close()
	}
	return err
}

// ask sends a packet and returns the answer to it.
func (s *stub) ask(ctx context.Context, packet string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for drained := false; !drained; { // earlier packets are no answer
		select {
		case _, ok := <-s.packets:
			if !ok {
				return "", fmt.Errorf("gdb stub: the connection ended")
			}
		default:
			drained = true
		}
	}
	sum := byte(0)
	for i := range len(packet) {
		sum += packet[i]
	}
	if err := s.write(fmt.Sprintf("$%s#%02x", packet, sum)); err != nil {
		return "", fmt.Errorf("gdb stub: %w", err)
	}
	timed, cancel := context.WithTimeout(ctx, stubPatience)
	defer cancel()
	select {
	case answer, ok := <-s.packets:
		if !ok {
			return "", fmt.Errorf("gdb stub: the connection ended")
		}
		if strings.HasPrefix(answer, "E") {
			return "", fmt.Errorf("gdb stub: %s was refused: %s", packet, answer)
		}
		return answer, nil
	case <-timed.Done():
		return "", fmt.Errorf("gdb stub: no answer to %s", packet)
	}
}

// step runs one instruction.
func (s *stub) step(ctx context.Context) error {
	_, err := s.ask(ctx, "s")
	return err
}

// breakpoint sets or removes a hardware breakpoint, which works before its page exists.
func (s *stub) breakpoint(ctx context.Context, set bool, address uint64) error {
	verb := "z"
	if set {
		verb = "Z"
	}
	answer, err := s.ask(ctx, fmt.Sprintf("%s1,%x,1", verb, address))
	if err == nil && answer != "OK" {
		err = fmt.Errorf("gdb stub: breakpoint at %#x: %q", address, answer)
	}
	return err
}
