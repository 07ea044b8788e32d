package machine

import (
	"bytes"
	"io"
	"regexp"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
)

// Trace selects what is traced in a running machine.
type Trace struct {
	// Calls, if not nil, receives the system calls of the code, which the guest writes to its console. A nanos image
	// must come from image.Store.Tracing.
	Calls io.Writer
	// Log receives QEMU's own log of LogItems (vmm.Config).
	LogItems string
	Log      io.Writer
}

// Limits of what is buffered to be parsed.
const (
	// maxCallLine bounds a line of the console; it equals the longest path.
	maxCallLine = 4 << 10
	// maxCallParts bounds the lines of one call of nanos: it has two paths at most.
	maxCallParts = 16
)

// Nanos prints a call (nanos/klib/strace.c) as its thread, the call, and at the end its result. Paths are printed
// unescaped, so they may contain line ends.
var (
	nanosCall = regexp.MustCompile(`^\[[^\n]{1,16}\] (?:[a-z_][a-z0-9_]*\(|<\.\.\. [a-z0-9_]+ resumed>)`)
	nanosEnd  = regexp.MustCompile(`(?:\) = (?:-?[0-9]+|0x[0-9a-f]+|-E[A-Z0-9]+|\?)|<unfinished \.\.\.>)$`)
)

// callLines separates the lines about system calls from the rest of a console.
type callLines struct {
	kernel      image.Kernel
	calls, rest io.Writer
	line        []byte
	parts       int // lines so far of an unfinished nanos call
}

func (c *callLines) Write(p []byte) (int, error) {
	c.line = append(c.line, p...)
	for {
		i := bytes.IndexByte(c.line, '\n') + 1
		if i == 0 && len(c.line) < maxCallLine {
			return len(p), nil
		}
		if i == 0 {
			i = len(c.line)
		}
		c.pass(c.line[:i])
		c.line = append(c.line[:0], c.line[i:]...)
	}
}

// pass writes a line to calls or to rest.
func (c *callLines) pass(line []byte) {
	if call, ok := c.call(bytes.TrimRight(line, "\r\n")); ok {
		_, _ = c.calls.Write(append(bytes.Clone(call), '\n'))
	} else {
		_, _ = c.rest.Write(line)
	}
}

// call returns the system call in a line, if the line has one.
func (c *callLines) call(line []byte) ([]byte, bool) {
	if c.kernel == image.Linux {
		return bytes.CutPrefix(line, []byte(contract.TraceMark))
	}
	if c.parts == 0 && !nanosCall.Match(line) {
		return nil, false
	}
	if c.parts++; c.parts == maxCallParts || nanosEnd.Match(line) {
		c.parts = 0
	}
	return line, true
}

// flush writes the unfinished line; the console must have ended.
func (c *callLines) flush() {
	if len(c.line) > 0 {
		c.pass(c.line)
	}
	c.line = nil
}
