package pykernel

import (
	"bytes"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// A kernel's messages while nobody runs code take bounded memory. A kernel that sends more is ended, and says why.
func TestAttackKernelMessages(t *testing.T) {
	for name, text := range map[string]string{
		"empty lines": strings.Repeat("\n", 1<<20), "short lines": strings.Repeat("{}\n", 1<<20),
		"one line without an end": strings.Repeat("x", 1<<20),
	} {
		ended := false
		k := &Kernel{More: make(chan struct{}, 1), stop: func() { ended = true }}
		r := &lines{to: k}
		for range 2 * MaxQueued / len(text) {
			_, _ = r.Write([]byte(text))
		}
		held := len(r.held)
		for _, m := range k.queue {
			held += len(m) + PieceCost
		}
		got := "unbounded"
		if held <= MaxQueued+len(text) && (ended || len(k.queue) == 0 && held == 0) {
			got = "bounded"
		}
		attack.Check(t, "a kernel that sends "+name, "bounded", got)
		if said := k.Err().Error(); ended && !strings.Contains(said, "the kernel was ended: ") {
			t.Errorf("%s: %s", name, said)
		}
	}
}

// A kernel that asks and reads no answers, as a flood of input() in a hostile machine, takes bounded memory.
func TestAttackKernelUnread(t *testing.T) {
	from, to := io.Pipe()
	defer from.Close()
	ended := false
	k := &Kernel{stdin: to, stop: func() { ended = true }}
	before := runtime.NumGoroutine()
	for range 100_000 {
		k.Send([]byte(`{"input": 1, "error": "too many questions"}`))
	}
	got := "unbounded"
	if ended && runtime.NumGoroutine()-before < 20_000 {
		got = "bounded"
	}
	attack.Check(t, "a kernel that reads no answers", "bounded", got)
}

// FuzzLines cuts a kernel's output into lines, however it arrives.
func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"type":"stdout","text":"x"}` + "\n" + `{"type":"end"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		k := &Kernel{More: make(chan struct{}, 1), stop: func() {}}
		r := &lines{to: k}
		for i := range data {
			_, _ = r.Write(data[i : i+1])
		}
		var want [][]byte
		all := bytes.Split(data, []byte("\n"))
		for _, line := range all[:len(all)-1] {
			if len(line) > 0 {
				want = append(want, line)
			}
		}
		if got := k.Take(); !bytes.Equal(bytes.Join(got, []byte("\n")), bytes.Join(want, []byte("\n"))) {
			t.Errorf("%q instead of %q", got, want)
		}
	})
}
