package netstack

import (
	"encoding/binary"
	"io"
	"sync"
	"time"
)

// Capture writes every frame of the links it is given to as a classic pcap file
// (Ethernet, times in microseconds; draft-ietf-opsawg-pcap). The first write that
// fails ends it. nil captures nothing.
type Capture struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

const (
	pcapMagic    = 0xa1b2c3d4
	pcapEthernet = 1
)

// NewCapture writes the file's head; it returns nil for a nil w.
func NewCapture(w io.Writer) *Capture {
	if w == nil {
		return nil
	}
	c := &Capture{w: w}
	h := binary.BigEndian.AppendUint32(nil, pcapMagic)
	h = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(h, 2), 4)
	h = append(h, make([]byte, 8)...)
	h = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(h, maxFrame), pcapEthernet)
	c.write(h)
	return c
}

func (c *Capture) write(b []byte) {
	if c.w != nil {
		if _, err := c.w.Write(b); err != nil {
			c.w = nil
		}
	}
}

func (c *Capture) frame(frame []byte) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Now()
	c.buf = c.buf[:0]
	for _, v := range []uint32{uint32(t.Unix()), uint32(t.Nanosecond() / 1000), uint32(len(frame)), uint32(len(frame))} {
		c.buf = binary.BigEndian.AppendUint32(c.buf, v)
	}
	c.write(append(c.buf, frame...))
}
