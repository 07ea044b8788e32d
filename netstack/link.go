package netstack

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// link carries Ethernet frames on a stream, each after its length (4 bytes, big-endian). This is the format of
// QEMU's stream network back end (net/stream.c).
type link struct {
	conn  net.Conn
	tap   *tap
	own   chan []byte   // our own frames that wait to be sent
	done  chan struct{} // closed when the guest's end is gone
	whole bool          // reading ended between two frames; valid after done

	carried atomic.Uint64 // frames, both ways
}

func newLink(conn net.Conn, t *tap) *link {
	return &link{conn: conn, tap: t, own: make(chan []byte, ownQueue), done: make(chan struct{})}
}

const linkHeader = 4

// readFrames calls handle for each frame until the link ends. The frame is valid during the call only.
func (l *link) readFrames(handle func(frame []byte)) error {
	defer close(l.done)
	r := bufio.NewReaderSize(l.conn, 256<<10)
	var length [linkHeader]byte
	frame := make([]byte, maxFrame)
	for {
		if got, err := io.ReadFull(r, length[:]); err != nil {
			l.whole = got == 0
			return err
		}
		n := binary.BigEndian.Uint32(length[:])
		if n > maxFrame {
			l.conn.Close()
			return fmt.Errorf("a frame of %d bytes", n)
		}
		if _, err := io.ReadFull(r, frame[:n]); err != nil {
			return err
		}
		l.carried.Add(1)
		l.tap.frame(frame[:n])
		handle(frame[:n])
	}
}

// writeFrames sends the frames that wait in own and in the stack's queue, many in one write. It returns when ctx ends
// or the guest's end is gone. Only writeFrames writes, and only it waits for a guest that does not read.
func (l *link) writeFrames(ctx context.Context, ep *channel.Endpoint) {
	wake := make(notify, 1)
	handle := ep.AddNotify(wake)
	defer ep.RemoveNotify(handle)
	buf := make([]byte, 0, 128<<10)
	for {
		select {
		case frame := <-l.own:
			buf = appendFrame(buf, frame)
			l.carried.Add(1)
			l.tap.frame(frame)
		case <-wake:
		case <-ctx.Done():
			return
		}
		for len(buf) < cap(buf)-maxFrame {
			pkt := ep.Read()
			if pkt == nil {
				break
			}
			begin := len(buf)
			buf = appendStackFrame(buf, pkt)
			l.carried.Add(1)
			l.tap.frame(buf[begin+linkHeader:])
			pkt.DecRef()
		}
		if _, err := l.conn.Write(buf); err != nil {
			return
		}
		if buf = buf[:0]; ep.NumQueued() > 0 {
			wake.WriteNotify()
		}
	}
}

// notify is a signal: several notifications before it is received count as one.
type notify chan struct{}

func (n notify) WriteNotify() {
	select {
	case n <- struct{}{}:
	default:
	}
}

// send queues one of our own frames; it returns false when the guest does not read.
func (l *link) send(frame []byte) bool {
	select {
	case l.own <- frame:
		return true
	default:
		return false
	}
}

func appendFrame(buf, frame []byte) []byte {
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(frame)))
	return append(buf, frame...)
}

// appendStackFrame appends one of the stack's packets as a frame.
func appendStackFrame(buf []byte, pkt *stack.PacketBuffer) []byte {
	buf = binary.BigEndian.AppendUint32(buf, uint32(header.EthernetMinimumSize+pkt.Size()))
	buf = appendEthernet(buf, header.IPv4ProtocolNumber)
	for _, part := range pkt.AsSlices() {
		buf = append(buf, part...)
	}
	return buf
}
