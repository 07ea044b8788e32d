package engine

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Bounds of a trace.
const (
	DefaultTraceBytes = 16 << 20
	maxTraceBytes     = 1 << 30 // of the record's disk
	maxTraceItems     = 64
)

// Trace selects what is written into the record's trace.log while a machine that was booted for it runs. Tracing slows
// the guest: each system call costs a line on its serial port.
type Trace struct {
	// Syscalls traces the code's system calls. Nanos needs a separate image for that, which is built first.
	Syscalls bool
	// QEMU lists items of QEMU's own log (-d), and its events as trace:PATTERN.
	QEMU []string
	// Bytes is the most that is kept; 0 is DefaultTraceBytes.
	Bytes int64
	// WithSecrets lets the run have secrets. A trace may show them in forms that the redactor
	// does not know.
	WithSecrets bool
}

// traceItem matches an item: QEMU's names, and patterns of them.
var traceItem = regexp.MustCompile(`^(trace:)?[a-z0-9_][a-z0-9_*-]{0,99}$`)

// check returns an error if a run can't be traced.
func (t *Trace) check(c *policy.Ceiling, secrets int) error {
	wrong := func(value any, reason string) error {
		return policy.Bad("trace", fmt.Sprint(value), "%s", reason)
	}
	if secrets > 0 && !t.WithSecrets {
		return secretsUnderDebug(secrets)
	}
	if !t.Syscalls && len(t.QEMU) == 0 {
		return wrong("of nothing", "say what: system calls, items of QEMU's log, or both")
	}
	if t.Bytes < 0 || t.Bytes > maxTraceBytes {
		return wrong(t.Bytes, fmt.Sprintf("must be from 1 to %d bytes", maxTraceBytes))
	}
	if len(t.QEMU) > maxTraceItems {
		return wrong(len(t.QEMU), fmt.Sprintf("%d items at most", maxTraceItems))
	}
	for _, item := range t.QEMU {
		if !traceItem.MatchString(item) {
			return wrong(fmt.Sprintf("%.100q", item), "use an item of QEMU's -d (int, guest_errors, …), or trace:PATTERN")
		}
	}
	return attach.Allowed(c)
}

// tracing is a current trace.
type tracing struct {
	machine.Trace
	sink traceSink
	end  func() // the machine must be gone
}

// begin makes the record's file.
func (t *Trace) begin(rec *record.Run, redactor *record.Redactor) (*tracing, error) {
	limit := t.Bytes
	if limit == 0 {
		limit = DefaultTraceBytes
	}
	file, closeFile, err := rec.Trace()
	if err != nil {
		return nil, err
	}
	tr := &tracing{sink: traceSink{Kept: bounded.Head{To: file, Left: limit, More: TraceCut}}}
	clean := redactor.Writer(&tr.sink.Kept)
	tr.sink.To = clean
	if t.Syscalls {
		tr.Calls = &tr.sink
	}
	tr.LogItems, tr.Log = strings.Join(t.QEMU, ","), &tr.sink
	tr.end = func() {
		clean.Close()
		closeFile()
	}
	return tr, nil
}

// TraceCut ends a trace that has reached its bound.
const TraceCut = "\n(the trace is longer than it may be)\n"

// traceSink keeps the beginning of a trace and drops the rest, so that neither QEMU nor the
// guest waits.
type traceSink struct {
	mu   sync.Mutex
	To   io.Writer // redacts, and writes to kept: a bound before it could cut a secret in two
	Kept bounded.Head
}

func (s *traceSink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Kept.Left > 0 {
		_, _ = s.To.Write(p)
	}
	return len(p), nil
}
