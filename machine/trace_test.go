package machine

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
)

// The lines about system calls are removed from a console, and the others stay, however they are split.
func TestCallLines(t *testing.T) {
	for name, c := range map[string]struct {
		kernel               image.Kernel
		console, calls, rest string
	}{
		"linux": {
			image.Linux, "booting\r\n~sys_a -> 0\r\n[ 1.0] ~no call\n~sys_b(x: 1)\n[2] close(3) = 0\n\nlogin: ",
			"sys_a -> 0\nsys_b(x: 1)\n", "booting\r\n[ 1.0] ~no call\n[2] close(3) = 0\n\nlogin: ",
		},
		"nanos": {
			image.Nanos,
			"[0.449821] en1: assigned 10.0.2.15\r\n[2] close(3) = 0\r\n[V8Worker] futex() = -ETIMEDOUT\r\n~sys_a\r\n" +
				"[2] brk(0x0) = 0x6da2000\n[2] syscall_467() = -ENOSYS\n[2] read(3, 0x1, 8 <unfinished ...>\n" +
				"unitask lacks: a shell\n[2] <... read resumed>) = 8\n" +
				"*** signal 11 received by tid 2, errno 0, code 1\n[1.5] assertion a(b) failed at x.c:1 (IP 0x1)\n[9] openat(",
			"[2] close(3) = 0\n[V8Worker] futex() = -ETIMEDOUT\n[2] brk(0x0) = 0x6da2000\n[2] syscall_467() = -ENOSYS\n" +
				"[2] read(3, 0x1, 8 <unfinished ...>\n[2] <... read resumed>) = 8\n[9] openat(\n",
			"[0.449821] en1: assigned 10.0.2.15\r\n~sys_a\r\nunitask lacks: a shell\n" +
				"*** signal 11 received by tid 2, errno 0, code 1\n[1.5] assertion a(b) failed at x.c:1 (IP 0x1)\n",
		},
		"linux, cut off": {image.Linux, "~sys_a -> 0\n~sys_b(", "sys_a -> 0\nsys_b(\n", ""},
		"nanos, a path with lines": {
			image.Nanos,
			"[2] openat(-100, \"/x\n*** signal 9 received by tid 2\nmap failed\", 0x0, 0x0) = -ENOENT\nmap failed\n",
			"[2] openat(-100, \"/x\n*** signal 9 received by tid 2\nmap failed\", 0x0, 0x0) = -ENOENT\n", "map failed\n",
		},
	} {
		for _, cut := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader,
			func(r io.Reader) io.Reader { return r }} {
			var calls, rest bytes.Buffer
			lines := &callLines{kernel: c.kernel, calls: &calls, rest: &rest}
			if _, err := io.Copy(lines, cut(strings.NewReader(c.console))); err != nil {
				t.Fatal(err)
			}
			lines.flush()
			if calls.String() != c.calls || rest.String() != c.rest {
				t.Errorf("%s: %q %q", name, &calls, &rest)
			}
		}
	}
}

// Text of the code in a path can't hide a kernel's last words for long, nor use the host's memory.
func TestAttackCallLines(t *testing.T) {
	const words = "assertion 1 failed at x.c:1 (IP 0x1)\n"
	for _, c := range []struct{ name, console string }{
		{"a line without an end", strings.Repeat("x", 1_000_000) + "\n"},
		{"a call without an end", "[2] openat(" + strings.Repeat("x", 1_000_000) + "\n"},
		{"a call of a thousand lines", "[2] openat(\"" + strings.Repeat("\n", 1000) + "\") = 0\n"},
		{"a thread whose name is a call", "[[2] open(] close(3) = 0\n"},
	} {
		var calls, rest bytes.Buffer
		lines := &callLines{kernel: image.Nanos, calls: &calls, rest: &rest}
		got := "bounded, and the kernel's words are seen"
		for text := c.console + words; text != ""; text = text[min(1000, len(text)):] {
			_, _ = lines.Write([]byte(text[:min(1000, len(text))]))
			if len(lines.line) > maxCallLine {
				got = "a line of any length waits"
			}
		}
		if !strings.HasSuffix(rest.String(), words) {
			got = "the kernel's words are taken for a call"
		}
		attack.Check(t, "a traced console: "+c.name, "bounded, and the kernel's words are seen", got)
	}
}
