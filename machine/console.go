package machine

import (
	"io"
	"strconv"
	"strings"

	"github.com/unitask/unitask/internal/tail"
)

// console keeps the serial port's output: the beginning in the record, up to a limit,
// and the end for a reason when the machine dies.
type console struct {
	record io.Writer
	left   int
	tail   tail.Buffer
}

const (
	// maxConsole bounds the record's console; a booting kernel prints some kilobytes.
	maxConsole = 1 << 20
	// consoleTail holds a kernel's last words and what led to them.
	consoleTail = 16 << 10
)

func newConsole(record io.Writer) *console {
	if record == nil {
		record = io.Discard
	}
	return &console{record: record, left: maxConsole, tail: tail.Buffer{Size: consoleTail}}
}

func (c *console) Write(p []byte) (int, error) {
	_, _ = c.tail.Write(p)
	keep := p[:min(len(p), c.left)]
	c.left -= len(keep)
	_, _ = c.record.Write(keep)
	return len(p), nil
}

// text is the console's end with control characters shown, so that a guest can't move
// the reader's cursor.
func (c *console) text() string {
	var out strings.Builder
	for _, line := range strings.Split(strings.ReplaceAll(c.tail.String(), "\r", ""), "\n") {
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
