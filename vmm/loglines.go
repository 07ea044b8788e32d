package vmm

import (
	"bytes"
	"io"
)

// logLines separates QEMU's own messages from its log: both are on stderr, since the jail lets QEMU create no file.
// QEMU's messages begin with its name.
type logLines struct {
	program  string
	own, log io.Writer
	line     []byte
}

// maxLogLine bounds a line that is examined as a whole.
const maxLogLine = 4 << 10

func (l *logLines) Write(p []byte) (int, error) {
	l.line = append(l.line, p...)
	for {
		i := bytes.IndexByte(l.line, '\n') + 1
		if i == 0 && len(l.line) < maxLogLine {
			return len(p), nil
		}
		if i == 0 {
			i = len(l.line)
		}
		to := l.log
		if bytes.HasPrefix(l.line, []byte(l.program)) {
			to = l.own
		}
		_, _ = to.Write(l.line[:i])
		l.line = append(l.line[:0], l.line[i:]...)
	}
}
