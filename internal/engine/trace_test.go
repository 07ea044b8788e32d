package engine

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Invalid trace options, and options that would add something to QEMU's command line.
func TestAttackTrace(t *testing.T) {
	forbids, err := policy.ParseCeiling(".unitask.toml", []byte("debug = false\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		trace   Trace
		ceiling *policy.Ceiling
		secrets int
		want    string
	}{
		{"system calls", Trace{Syscalls: true}, nil, 0, ""},
		{"items and events", Trace{QEMU: []string{"int", "guest_errors", "trace:virtio_blk_*"}}, nil, 0, ""},
		{"nothing", Trace{}, nil, 0, "say what"},
		{"against the ceiling", Trace{Syscalls: true}, forbids, 0, "debug = false"},
		{"with a secret inside", Trace{Syscalls: true}, nil, 1, "--with-secrets"},
		{"with a secret, and said so", Trace{Syscalls: true, WithSecrets: true}, nil, 1, ""},
		{"of more than a disk", Trace{Syscalls: true, Bytes: 1 << 50}, nil, 0, "must be from"},
		{"of less than nothing", Trace{Syscalls: true, Bytes: -1}, nil, 0, "must be from"},
		{"another item behind a comma", Trace{QEMU: []string{"int,plugin"}}, nil, 0, "use an item"},
		{"another file", Trace{QEMU: []string{"trace:file=/etc/passwd"}}, nil, 0, "use an item"},
		{"a path", Trace{QEMU: []string{"../../x"}}, nil, 0, "use an item"},
		{"an option", Trace{QEMU: []string{"-monitor"}}, nil, 0, "use an item"},
		{"an empty item", Trace{QEMU: []string{""}}, nil, 0, "use an item"},
		{"a thousand items", Trace{QEMU: make([]string, 1000)}, nil, 0, "items at most"},
	} {
		got := ""
		if err := c.trace.check(c.ceiling, c.secrets); err != nil {
			if got = err.Error(); c.want != "" && strings.Contains(got, c.want) {
				got = c.want
			}
		}
		attack.Check(t, "a trace: "+c.name, c.want, got)
	}
}

// A trace has a size limit.
func TestAttackTraceFlood(t *testing.T) {
	var kept bytes.Buffer
	sink := &traceSink{Kept: bounded.Head{To: &kept, Left: 1000, More: TraceCut}}
	sink.To = &sink.Kept
	for range 100_000 {
		_, _ = sink.Write([]byte("sys_read(fd: 0)\n"))
	}
	got := "1000 bytes and a note"
	if kept.Len() > 1100 || strings.Count(kept.String(), "longer than it may be") != 1 {
		got = kept.String()
	}
	attack.Check(t, "a trace: a flood of system calls", "1000 bytes and a note", got)
}

// If the guest makes the limit split a secret, no half of it is left.
func TestAttackTraceCut(t *testing.T) {
	const secret = "correct-horse-battery-staple"
	redactor, err := record.NewRedactor(record.Secrets{Given: map[string]string{"KEY": secret}})
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []int{0, 5, 12, 20, 27} {
		var kept bytes.Buffer
		sink := &traceSink{Kept: bounded.Head{To: &kept, Left: 100, More: TraceCut}}
		clean := redactor.Writer(&sink.Kept)
		sink.To = clean
		_, _ = sink.Write([]byte(strings.Repeat("x", 100-before) + secret + strings.Repeat("y", 100)))
		clean.Close()
		got := "nothing of it"
		if strings.Contains(kept.String(), secret[:4]) {
			got = kept.String()
		}
		attack.Check(t, fmt.Sprintf("a trace whose bound falls behind %d bytes of a secret", before), "nothing of it", got)
	}
}
