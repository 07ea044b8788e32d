package machine

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/internal/tail"
)

// console stores the serial port's output: the beginning in the record, up to a limit, and the end to explain why
// a machine died. It detects a kernel that panics.
type console struct {
	// lost treats the report of a guest whose code was lost like a kernel panic, where nothing else reports the
	// end. Set before the first Write.
	lost bool

	mu     sync.Mutex
	record io.Writer
	left   int
	tail   tail.Buffer
	line   []byte        // the unfinished line
	death  []byte        // from the first line of the kernel's panic on
	dead   chan struct{} // closed when the kernel panics
	lacks  string        // the first thing that the code asked for and its kernel lacks

	lacking chan struct{} // closed when lacks is set
}

const (
	// maxConsole bounds the record's console; a booting kernel prints some kilobytes.
	maxConsole = 1 << 20
	// consoleTail bounds the stored end of the console: a kernel's last messages and their cause.
	consoleTail = 16 << 10
	// consoleLine bounds the inspected part of a line; a kernel's lines are shorter.
	consoleLine = 1 << 10
)

func newConsole(record io.Writer) *console {
	if record == nil {
		record = io.Discard
	}
	return &console{record: record, left: maxConsole, tail: tail.Buffer{Size: consoleTail}, dead: make(chan struct{}),
		lacking: make(chan struct{})}
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look(p)
	_, _ = c.tail.Write(p)
	keep := p[:min(len(p), c.left)]
	c.left -= len(keep)
	_, _ = c.record.Write(keep)
	return len(p), nil
}

// look detects a panic of the kernel, and stores the output that follows.
func (c *console) look(p []byte) {
	for len(p) > 0 {
		if c.death != nil {
			c.death = append(c.death, p[:min(len(p), consoleTail-len(c.death))]...)
			return
		}
		n := bytes.IndexByte(p, '\n') + 1
		part := p
		if n > 0 {
			part = p[:n]
		}
		c.line = append(c.line, part[:min(len(part), consoleLine-len(c.line))]...)
		p = p[len(part):]
		if n == 0 {
			return
		}
		if what, ok := guest.Lacks(string(c.line)); ok && c.lacks == "" {
			c.lacks = what
			close(c.lacking)
		}
		if guest.Dies(string(c.line)) {
			c.death = bytes.Clone(c.line)
			c.ends()
		} else if _, ok := guest.LastWords(string(c.line)); ok && c.lost {
			c.ends()
		}
		c.line = c.line[:0]
	}
}

// ends notes that only a dying kernel's last messages can follow. The caller holds mu.
func (c *console) ends() {
	select {
	case <-c.dead:
	default:
		close(c.dead)
	}
}

// words returns the console's last output unchanged. death is the kernel's output since its panic, "" without one.
func (c *console) words() (end, death string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tail.String(), string(c.death)
}

// text returns the console's end with control characters made visible, so that a guest can't move the reader's
// cursor.
func (c *console) text() string {
	end, _ := c.words()
	return shown(end)
}

func shown(raw string) string {
	var out strings.Builder
	for _, line := range strings.Split(strings.ReplaceAll(raw, "\r", ""), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		quoted := strconv.Quote(line)
		out.WriteString(quoted[1:len(quoted)-1] + "\n")
	}
	return strings.TrimSpace(out.String())
}

func lastLines(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
