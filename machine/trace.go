package machine

import (
	"bytes"
	"io"
	"regexp"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
)

// Trace is what of a machine is written down while it runs.
type Trace struct {
	// Calls, if not nil, takes the system calls of the code, which the guest writes to its
	// console. A nanos image must be one of image.Store.Tracing.
	Calls io.Writer
	// Log takes QEMU's own log of LogItems (vmm.Config).
	LogItems string
	Log      io.Writer
}

// Bounds of what is looked at whole.
const (
	// maxCallLine bounds a line of the console; the longest path has as much.
	maxCallLine = 4 << 10
	// maxCallParts bounds the lines of one call of nanos: it has two paths at most.
	maxCallParts = 16
)

// How Nanos tells of a call (nanos/klib/strace.c): its thread, the call, and in the end
// what it returned. Paths are in it as they are, also with line ends.
var (
	nanosCall = regexp.MustCompile(`^\[[^\n]{1,16}\] (?:[a-z_][a-z0-9_]*\(|<\.\.\. [a-z0-9_]+ resumed>)`)
	nanosEnd  = regexp.MustCompile(`(?:\) = (?:-?[0-9]+|0x[0-9a-f]+|-E[A-Z0-9]+|\?)|<unfinished \.\.\.>)$`)
)

// callLines takes the lines that tell of system calls out of a console.
type callLines struct {
	kernel      image.Kernel
	calls, rest io.Writer
	line        []byte
	parts       int // of the call of nanos that has not ended yet
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

// pass passes on a line.
func (c *callLines) pass(line []byte) {
	if call, ok := c.call(bytes.TrimRight(line, "\r\n")); ok {
		_, _ = c.calls.Write(append(bytes.Clone(call), '\n'))
	} else {
		_, _ = c.rest.Write(line)
	}
}

// call returns what a line tells of a system call, if it does.
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

// flush passes on a line that has not ended; the console must have.
func (c *callLines) flush() {
	if len(c.line) > 0 {
		c.pass(c.line)
	}
	c.line = nil
}
