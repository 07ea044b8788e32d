package netstack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Capture writes every frame of its links as a classic pcap file (Ethernet, times in microseconds;
// draft-ietf-opsawg-pcap). The first failing write ends it, and so does MaxCapture; Err returns the reason. A nil
// Capture captures nothing.
type Capture struct {
	writing sync.Mutex // one frame at a time; guards w and left
	w       io.Writer
	left    int64

	mu  sync.Mutex
	err error
}

const (
	pcapMagic    = 0xa1b2c3d4
	pcapEthernet = 1
	pcapHead     = 24
	pcapRecord   = 16

	// MaxCapture bounds the file of one capture, in bytes: a guest that sends to the gateway without end would
	// fill the disk. Most tools get slow far below that size.
	MaxCapture = 1 << 30
	// captureQueue bounds the frames, in bytes, that wait for the disk; more are dropped from the capture. The
	// guest sends at most some 100 MB a second.
	captureQueue = 16 << 20
)

// ErrCaptureLimit means that a capture has ended because it has MaxCapture bytes.
var ErrCaptureLimit = errors.New("the capture ends at its limit")

// NewCapture writes the file's head and returns a Capture; it returns nil for a nil w.
func NewCapture(w io.Writer) *Capture {
	if w == nil {
		return nil
	}
	c := &Capture{w: w, left: MaxCapture}
	h := binary.BigEndian.AppendUint32(make([]byte, 0, pcapHead), pcapMagic)
	h = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(h, 2), 4)
	h = append(h, make([]byte, 8)...)
	h = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(h, maxFrame), pcapEthernet)
	c.write(h)
	return c
}

// Err returns why the capture ended before its links; nil if it did not. It may be called from any goroutine.
func (c *Capture) Err() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// write appends to the file; it returns false once the capture has ended.
func (c *Capture) write(b []byte) bool {
	c.writing.Lock()
	defer c.writing.Unlock()
	switch {
	case c.Err() != nil:
		return false
	case int64(len(b)) > c.left:
		return c.end(fmt.Errorf("%w of %d MiB", ErrCaptureLimit, MaxCapture>>20))
	}
	c.left -= int64(len(b))
	if _, err := c.w.Write(b); err != nil {
		return c.end(fmt.Errorf("write capture: %w", err))
	}
	return true
}

func (c *Capture) end(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	return false
}

// tap connects one link to a capture.
type tap struct {
	log    *netlog
	frames *spool[[]byte] // nil: nothing is captured
}

func newTap(c *Capture, log *netlog) *tap {
	if c == nil {
		return &tap{}
	}
	return &tap{log, newSpool(captureQueue, func(record []byte) {
		if !c.write(record) {
			log.drop(DropCapture)
		}
	})}
}

// frame captures one frame. It never blocks.
func (t *tap) frame(frame []byte) {
	if t.frames == nil {
		return
	}
	now := time.Now()
	record := make([]byte, 0, pcapRecord+len(frame))
	for _, v := range []uint32{uint32(now.Unix()), uint32(now.Nanosecond() / 1000), uint32(len(frame)),
		uint32(len(frame))} {
		record = binary.BigEndian.AppendUint32(record, v)
	}
	if record = append(record, frame...); !t.frames.put(record, len(record)) {
		t.log.drop(DropCapture)
	}
}

func (t *tap) close() {
	if t.frames != nil {
		t.frames.close()
	}
}
