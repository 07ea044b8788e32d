package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

func TestLastWords(t *testing.T) {
	for name, c := range map[string]struct {
		console string
		end     End
		ok      bool
	}{
		"nothing": {"", End{}, false},
		"a boot":  {"[0.08] en1: assigned 10.0.2.15\n", End{}, false},
		"nanos, memory": {"[1.6] page fill failed with (result:out of memory)\n\n" +
			"*** signal 7 received by tid 2, errno 0, code 2\n", End{Signal: 9, OOM: true}, true},
		"nanos, pages":     {"page table: failed to allocate memory\n", End{Signal: 9, OOM: true}, true},
		"nanos, a crash":   {"x\n*** signal 11 received by tid 2, errno 0, code 1\n", End{Signal: 11}, true},
		"no such signal":   {"*** signal 99 received by tid 2\n", End{}, false},
		"signal 0":         {"*** signal 0 received by tid 2\n", End{}, false},
		"within a line":    {"x *** signal 11 received by tid 2\n", End{}, false},
		"linux, deadlock":  {"Kernel panic - not syncing: System is deadlocked on memory\n", End{Signal: 9, OOM: true}, true},
		"linux, else":      {"Kernel panic - not syncing: Attempted to kill init!\n", End{}, false},
		"an endless digit": {"*** signal 1111111111111111111111111111 received by tid\n", End{}, false},
	} {
		if end, ok := LastWords(c.console); end != c.end || ok != c.ok {
			t.Errorf("%s: %+v %v", name, end, ok)
		}
	}
}

func TestDeathCause(t *testing.T) {
	const fault = `no fault handler
cpu 0000000000000000, state kernel, vector 000000000000000e
lastvector: 000000000000000e (Page fault)
   rip: ffffffffd1fbfa1e	(log_extension_init + 000000000000001e/0000000000000938)
frame trace:
`
	for name, c := range map[string]struct{ console, want string }{
		"nanos, an assertion": {
			console: "frame trace: \nffffc0: x\n" +
				"assertion !ctx->waiting_on failed at /b/src/src/kernel/mutex.c:96 (IP 0xffffffffa615af3a) in " +
				"mutex_lock_internal()\n" +
				"lastvector: 000000000000000e (Page fault)\n",
			want: "assertion !ctx->waiting_on failed at kernel/mutex.c:96 in mutex_lock_internal()",
		},
		"nanos, a fault": {"[0.4] en1: assigned 10.0.2.15\n" + fault,
			"page fault in the kernel, in log_extension_init"},
		"nanos, a fault nowhere": {"no fault handler\nlastvector: 000000000000000e (Page fault)\n" +
			"   rip: ffffc00002858148\n", "page fault in the kernel"},
		"nanos, a stack overflown": {"frame ffffc00002858000 already full\n", "frame ffffc00002858000 already full"},
		"linux": {
			console: "[    1.234567] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000009\n",
			want:    "Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000009",
		},
		"nothing": {"[0.4] en1: assigned 10.0.2.15\n", "it does not say why"},
	} {
		if got := DeathCause(c.console); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if Dies("[2.262757] en1: assigned FE80::5054:FF:FE75:7401") || !Dies("no fault handler") {
		t.Error("which lines are a death")
	}
}

// Code that writes to the console can't choose the words of our messages.
func TestAttackLacks(t *testing.T) {
	for line, want := range map[string]string{
		"unitask lacks: nothing if you run it with allow-net-any\n": "something",
		"unitask lacks: \x1b[31mred\n":                              "",
		"unitask lacks: " + strings.Repeat("x", 61) + "\n":          "",
		"the code says unitask lacks: child processes\n":            "",
	} {
		got, _ := Lacks(line)
		attack.Check(t, fmt.Sprintf("code writes %.40q to the console: what we say it lacks", line), want, got)
	}
}

func TestLacks(t *testing.T) {
	for line, want := range map[string]string{
		"unitask lacks: child processes\r\n":                      "child processes",
		"unitask lacks: names that are not UTF-8 text\n":          "names that are not UTF-8 text",
		"unitask: cannot store a file: No space left on device\n": "",
	} {
		if got, ok := Lacks(line); got != want || ok != (want != "") {
			t.Errorf("%q: %q %v", line, got, ok)
		}
	}
	for _, pattern := range []string{"nanos/*.c", "python/program/*.c"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`nanos_lacks\("([^"]*)"\)`).FindAllStringSubmatch(string(text), -1) {
				if got, _ := Lacks("unitask lacks: " + m[1] + "\n"); got != m[1] {
					t.Errorf("%s says %q, which is not listed: got %q", file, m[1], got)
				}
			}
		}
	}
}
