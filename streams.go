package unitask

import (
	"bytes"
	"io"

	"github.com/unitask/unitask/internal/tail"
)

// capped passes a stream on up to a limit and drops the rest, so that a guest
// that prints without end costs neither memory nor disk and is not stalled.
type capped struct {
	left      int64
	truncated bool
	record    io.Writer
	out       io.Writer     // the caller's, or nil
	collected *bytes.Buffer // when out is nil
	tail      tail.Buffer   // the end, for diagnosis; also of what was dropped
}

// tailSize holds V8's report of a full heap, a few kilobytes before the end.
const tailSize = 16 << 10

func newCapped(limit int64, record, out io.Writer) *capped {
	c := &capped{left: limit, record: record, out: out, tail: tail.Buffer{Size: tailSize}}
	if out == nil {
		c.collected = new(bytes.Buffer)
		c.out = c.collected
	}
	return c
}

// Write fails only when the caller's writer does.
func (c *capped) Write(p []byte) (int, error) {
	n := len(p)
	_, _ = c.tail.Write(p)
	if int64(len(p)) > c.left {
		c.truncated = true
		p = p[:c.left]
	}
	c.left -= int64(len(p))
	if len(p) == 0 {
		return n, nil
	}
	_, _ = c.record.Write(p)
	if _, err := c.out.Write(p); err != nil {
		return 0, err
	}
	return n, nil
}

// restart forgets what came.
func (c *capped) restart(limit int64) {
	c.left, c.truncated = limit, false
	if c.collected != nil {
		c.collected.Reset()
	}
}

func (c *capped) bytes() []byte {
	if c.collected == nil {
		return nil
	}
	return c.collected.Bytes()
}
