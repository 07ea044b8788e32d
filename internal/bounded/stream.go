package bounded

import (
	"bytes"
	"io"

	"github.com/unitask/unitask/internal/tail"
)

// Stream passes on an output stream of a guest up to a limit and drops the rest. A guest that prints without end fills
// neither memory nor disk, and is not blocked.
type Stream struct {
	Truncated bool        // more came than the limit
	Tail      tail.Buffer // the end of the stream, for diagnosis; includes dropped bytes
	All       io.Writer   // also receives what is beyond the limit; may be nil

	left      int64
	record    io.Writer
	out       io.Writer     // the caller's, or nil
	collected *bytes.Buffer // when out is nil
}

// tailSize is enough for V8's report of a full heap, which comes a few kilobytes before the end.
const tailSize = 16 << 10

// NewStream returns a Stream that writes the first limit bytes to record and out. With a nil out, a buffer collects
// them (Bytes).
func NewStream(limit int64, record, out io.Writer) *Stream {
	c := &Stream{left: limit, record: record, out: out, Tail: tail.Buffer{Size: tailSize}}
	if out == nil {
		c.collected = new(bytes.Buffer)
		c.out = c.collected
	}
	return c
}

// Write fails only if the caller's writer fails.
func (c *Stream) Write(p []byte) (int, error) {
	n := len(p)
	_, _ = c.Tail.Write(p)
	if c.All != nil {
		if _, err := c.All.Write(p); err != nil {
			return 0, &WriteError{err}
		}
	}
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

// WriteError is an error of the writer that receives a caller's output.
type WriteError struct{ Err error }

func (e *WriteError) Error() string { return e.Err.Error() }
func (e *WriteError) Unwrap() error { return e.Err }

// Restart forgets the collected bytes, and starts again with a new limit.
func (c *Stream) Restart(limit int64) {
	c.left, c.Truncated = limit, false
	if c.collected != nil {
		c.collected.Reset()
	}
}

// Bytes returns the collected bytes, or nil if the Stream has a writer.
func (c *Stream) Bytes() []byte {
	if c.collected == nil {
		return nil
	}
	return c.collected.Bytes()
}
