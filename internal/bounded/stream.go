package bounded

import (
	"bytes"
	"io"

	"github.com/unitask/unitask/internal/tail"
)

// Stream passes an output stream of a guest on up to a limit and drops the rest. A guest that prints
// without end costs neither memory nor disk, and does not wait.
type Stream struct {
	Truncated bool        // more came than the limit
	Tail      tail.Buffer // the end, for diagnosis; also of what was dropped

	left      int64
	record    io.Writer
	out       io.Writer     // the caller's, or nil
	collected *bytes.Buffer // when out is nil
}

// tailSize holds V8's report of a full heap, a few kilobytes before the end.
const tailSize = 16 << 10

// NewStream returns a Stream that writes the first limit bytes to record and out. A nil out is a buffer (Bytes).
func NewStream(limit int64, record, out io.Writer) *Stream {
	c := &Stream{left: limit, record: record, out: out, Tail: tail.Buffer{Size: tailSize}}
	if out == nil {
		c.collected = new(bytes.Buffer)
		c.out = c.collected
	}
	return c
}

// Write fails only when the caller's writer does.
func (c *Stream) Write(p []byte) (int, error) {
	n := len(p)
	_, _ = c.Tail.Write(p)
	if int64(len(p)) > c.left {
		c.Truncated = true
		p = p[:c.left]
	}
	c.left -= int64(len(p))
	if len(p) == 0 {
		return n, nil
	}
	_, _ = c.record.Write(p)
	if _, err := c.out.Write(p); err != nil {
		return 0, &WriteError{err}
	}
	return n, nil
}

// WriteError is an error of the writer to which a caller's output goes.
type WriteError struct{ Err error }

func (e *WriteError) Error() string { return e.Err.Error() }
func (e *WriteError) Unwrap() error { return e.Err }

// Restart forgets what was collected, and begins with a new limit.
func (c *Stream) Restart(limit int64) {
	c.left, c.Truncated = limit, false
	if c.collected != nil {
		c.collected.Reset()
	}
}

// Bytes returns what was collected, nil if there is a writer for it.
func (c *Stream) Bytes() []byte {
	if c.collected == nil {
		return nil
	}
	return c.collected.Bytes()
}
