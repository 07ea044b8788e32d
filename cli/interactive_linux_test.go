package cli

import (
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
)

// typist is at the other end of a pseudo-terminal.
type typist struct {
	t    *testing.T
	ptmx *os.File
	tty  *os.File

	mu    sync.Mutex
	saw   string
	more  chan struct{}
	ended chan struct{}
}

func newTypist(t *testing.T, columns, rows uint16) *typist {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	y := &typist{t: t, ptmx: ptmx, tty: tty, more: make(chan struct{}, 1), ended: make(chan struct{})}
	y.resize(columns, rows)
	go func() {
		defer close(y.ended)
		buf := make([]byte, 4096)
		for {
			n, err := ptmx.Read(buf)
			y.mu.Lock()
			y.saw += string(buf[:n])
			y.mu.Unlock()
			select {
			case y.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		// The run has ended, but its last Read of standard input still waits and keeps the terminal open: a line lets it
		// return.
		_, _ = io.WriteString(ptmx, "\n")
		tty.Close()
		select {
		case <-y.ended:
		case <-time.After(10 * time.Second):
			t.Error("somebody still reads from the terminal")
		}
		ptmx.Close()
	})
	return y
}

func (y *typist) resize(columns, rows uint16) {
	y.t.Helper()
	if err := pty.Setsize(y.ptmx, &pty.Winsize{Cols: columns, Rows: rows}); err != nil {
		y.t.Fatal(err)
	}
}

// types waits until the screen has shown a text, discards the output until then, and types keys.
func (y *typist) types(after, keys string) {
	y.t.Helper()
	timeout := time.After(time.Minute)
	for {
		y.mu.Lock()
		i := strings.Index(y.saw, after)
		if i >= 0 {
			y.saw = y.saw[i+len(after):]
		}
		saw := y.saw
		y.mu.Unlock()
		if i >= 0 {
			break
		}
		select {
		case <-y.more:
		case <-timeout:
			y.t.Fatalf("%q was not shown, but %q", after, saw)
		}
	}
	if _, err := io.WriteString(y.ptmx, keys); err != nil {
		y.t.Fatal(err)
	}
}

// bootingHome returns a home whose runs boot linux machines; it skips the test in -short.
func bootingHome(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("boots machines")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	return testhome.New(t, base)
}

// The code has a terminal: its size, colors, lines, single keys, Ctrl-C. Two consecutive Ctrl-C end the run.
func TestInteractive(t *testing.T) {
	home := bootingHome(t)
	y := newTypist(t, 91, 33)
	before, err := unix.IoctlGetTermios(int(y.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	const first = `
const { stdin, stdout } = process, say = (...words) => stdout.write(words.join(" ") + "\n");
console.log({ color: true });
process.on("SIGINT", () => say("got SIGINT"));
stdout.on("resize", () => say("size", stdout.columns, stdout.rows));
stdin.on("data", (d) => {
  if (String(d) === "raw\n") { stdin.setRawMode(true); say("keys now"); }
  else if (stdin.isRaw) { say("key", JSON.stringify(String(d))); process.exit(3); }
});
say("ready", stdin.isTTY, stdout.isTTY, process.stderr.isTTY, stdout.columns, stdout.rows, process.env.TERM !== ` +
		`undefined);`
	ended := make(chan int, 1)
	run := func(y *typist, code string) {
		go func() {
			ended <- Main([]string{"run", "--home", home, "-it", "--cold", "--code", code},
				Streams{Stdin: y.tty, Stdout: y.tty, Stderr: y.tty})
		}()
	}
	run(y, first)
	y.types("\x1b[33mtrue\x1b[39m", "")
	y.types("ready true true true 91 33 true\r\n", "\x03")
	y.types("got SIGINT\r\n", "")
	y.resize(100, 40)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil { // ours is not this process's controlling terminal
		t.Fatal(err)
	}
	y.types("size 100 40\r\n", "raw\r")
	y.types("keys now\r\n", "x")
	y.types(`key "x"`, "")
	if code := <-ended; code != 3 {
		t.Errorf("exit code %d", code)
	}
	after, err := unix.IoctlGetTermios(int(y.tty.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %+v, was %+v, %v", after, before, err)
	}
	z := newTypist(t, 80, 24) // the first one's last Read still waits
	run(z, `process.on("SIGINT", () => {}); setInterval(() => {}, 1000); console.log("deaf")`)
	z.types("deaf\r\n", "\x03\x03")
	if code := <-ended; code != 130 {
		t.Errorf("exit code %d after a second Ctrl-C", code)
	}
}

// A terminal request without a terminal is refused.
func TestInteractiveRefused(t *testing.T) {
	y := newTypist(t, 80, 24)
	for _, c := range []struct {
		args []string
		out  io.Writer
		want string
	}{
		{[]string{"-t", "--code", "1"}, io.Discard, "-t: standard output is no terminal"},
		{[]string{"-t", "--json", "--code", "1"}, y.tty, "go neither with --json"},
		{[]string{"-it", "-"}, y.tty, "nor with code on standard input"},
		{[]string{"-t", "--kernel", "nanos", "--code", "1"}, y.tty, "--kernel nanos: has no terminals: use linux"},
	} {
		var said strings.Builder
		args := append([]string{"run", "--home", testdir.Private(t)}, c.args...)
		if code := Main(args, Streams{Stdin: strings.NewReader("1"), Stdout: c.out, Stderr: &said}); code != 2 ||
			!strings.Contains(said.String(), c.want) && c.args[1] != "--json" {
			t.Errorf("%v: exit code %d, %q", c.args, code, said.String())
		}
	}
}

// FORCE_COLOR depends on our own output.
func TestColors(t *testing.T) {
	y := newTypist(t, 80, 24)
	for _, c := range []struct {
		to   any
		env  map[string]string
		want string
	}{
		{io.Discard, map[string]string{"TERM": "xterm-256color", "FORCE_COLOR": "3"}, ""},
		{y.tty, map[string]string{"TERM": "xterm"}, "1"},
		{y.tty, map[string]string{"TERM": "xterm-256color"}, "2"},
		{y.tty, map[string]string{"TERM": "xterm", "COLORTERM": "truecolor"}, "3"},
		{y.tty, map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, ""},
		{y.tty, map[string]string{"TERM": "dumb"}, ""},
		{y.tty, map[string]string{"TERM": "xterm", "FORCE_COLOR": "0"}, "0"},
	} {
		if got := colors(c.to, func(name string) string { return c.env[name] }); got != c.want {
			t.Errorf("%v: %q, want %q", c.env, got, c.want)
		}
	}
}

// Progress is one line on a terminal, which is removed at the end. Elsewhere no progress is printed.
func TestProgressLine(t *testing.T) {
	show := func(to io.Writer) {
		u := newUI(Streams{Stderr: to})
		tell := u.event(false)
		tell(unitask.Event{Kind: unitask.EventFiles, Message: "1 of 9"})
		tell(unitask.Event{Kind: unitask.EventFiles, Message: "2 of 9\x1b[2J"})
		tell(unitask.Event{Kind: unitask.EventRetry, Message: "a note"})
		tell(unitask.Event{Kind: unitask.EventFiles, Message: "3 of 9"})
		tell(unitask.Event{Kind: unitask.EventStarted})
	}
	const cleared = "\r\x1b[K"
	if got, want := onTerminal(t, func(tty *os.File) { show(tty) }),
		cleared+"unitask: 1 of 9"+cleared+`unitask: 2 of 9\x1b[2J`+cleared+"\x1b[0munitask: a note\n"+cleared+
			"unitask: 3 of 9"+cleared; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var elsewhere strings.Builder
	if show(&elsewhere); elsewhere.String() != "unitask: a note\n" {
		t.Errorf("%q", elsewhere.String())
	}
}

// A person types entries: with a history, a block that an empty line ends, Ctrl-C that drops the input or interrupts
// the code, and Ctrl-D.
func TestReplTyped(t *testing.T) {
	home := bootingHome(t)
	for range 2 {
		y := newTypist(t, 80, 24)
		before, err := unix.IoctlGetTermios(int(y.tty.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan int, 1)
		go func() {
			ended <- Main([]string{"repl", "python", "--home", home}, Streams{Stdin: y.tty, Stdout: y.tty, Stderr: y.tty})
		}()
		y.types("python> ", "x = 40\r")
		y.types("python> ", "x +\x03")
		y.types("python> ", "if x:\r")
		y.types("......> ", "  print('a', x + 2)\r")
		y.types("......> ", "\r")
		y.types("a 42\r\n", "")
		y.types("python> ", "if x:\r")
		y.types("......> ", "\x03")
		y.types("python> ", "import time; print('sle' + 'eps', flush=True); time.sleep(600)\r")
		y.types("sleeps\r\n", "")
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil { // ours is not this process's controlling terminal
			t.Fatal(err)
		}
		y.types("KeyboardInterrupt", "")
		y.types("python> ", "\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A\r") // x = 40
		y.types("python> ", "x + 1\r")
		y.types("41\r\n", "")
		y.types("python> ", "\x04")
		if code := <-ended; code != 0 {
			t.Errorf("exit code %d", code)
		}
		after, err := unix.IoctlGetTermios(int(y.tty.Fd()), unix.TCGETS)
		if err != nil || *after != *before {
			t.Errorf("the terminal is not as it was: %+v, was %+v, %v", after, before, err)
		}
	}
	typed, err := os.ReadFile(home + "/repl_history")
	if err != nil || !strings.HasPrefix(string(typed), "x = 40\n") {
		t.Errorf("%q %v", typed, err)
	}
}
