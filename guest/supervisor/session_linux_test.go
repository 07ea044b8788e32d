package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

// The session's own program on this host, compiled with sanitizers, with Client as its host.

var hostedDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if hostedDir != "" {
		os.RemoveAll(hostedDir)
	}
	os.Exit(code)
}

var hosted = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "unitask-session-")
	if err != nil {
		return "", err
	}
	hostedDir = dir
	program := filepath.Join(dir, "session")
	out, err := exec.Command("gcc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wl,--wrap=fchown",
		"-o", program, "testdata/hosted.c", "../init/session.c", "../init/sessionstart.c", "../init/sessionfiles.c", "../init/sessionforward.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return program, nil
})

// open starts a session's program.
func open(t *testing.T, env ...string) *Client {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc with its sanitizers: apt-get install gcc libc6-dev")
	}
	program, err := hosted()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0")
	cmd.Env = append(cmd.Env, env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := New(in)
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, err := io.Copy(c, out)
		c.Close(err)
	}()
	t.Cleanup(func() {
		in.Close()
		<-read
		if err := cmd.Wait(); err != nil || errs.Len() > 0 {
			t.Errorf("the session's program: %v %s", err, errs.String())
		}
	})
	return c
}

const patience = time.Minute

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

var environment = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LANG=C.UTF-8"}

func TestCommands(t *testing.T) {
	t.Parallel()
	c := open(t)
	long := strings.Repeat("0123456789", 100_000)
	for _, row := range []struct {
		name     string
		e        Exec
		out, err string
		end      guest.End
		fails    error
	}{
		{"its streams apart", Exec{Args: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}}, "out\n", "err\n", guest.End{Code: 3}, nil},
		{"an empty argument", Exec{Args: []string{"sh", "-c", `printf '%s|' "$#" "$@"`, "x", "", "a b"}}, "2||a b|", "", guest.End{}, nil},
		{"its folder", Exec{Args: []string{"pwd"}, Dir: "/usr"}, "/usr\n", "", guest.End{}, nil},
		{"its environment", Exec{Args: []string{"env"}, Env: append(environment, "A=1")}, strings.Join(append(environment, "A=1"), "\n") + "\n", "", guest.End{}, nil},
		{"a signal", Exec{Args: []string{"sh", "-c", "kill -9 $$"}}, "", "", guest.End{Signal: 9}, nil},
		{"no such program", Exec{Args: []string{"no-such-program"}}, "", "", guest.End{}, syscall.ENOENT},
		{"no such folder", Exec{Args: []string{"true"}, Dir: "/no/such"}, "", "", guest.End{}, syscall.ENOENT},
		{"a folder as a program", Exec{Args: []string{"/usr"}}, "", "", guest.End{}, syscall.EACCES},
		{"a megabyte through it", Exec{Args: []string{"cat"}, Stdin: strings.NewReader(long)}, long, "", guest.End{}, nil},
		{"input that nobody reads", Exec{Args: []string{"true"}, Stdin: strings.NewReader(long)}, "", "", guest.End{}, nil},
		{"no input", Exec{Args: []string{"cat"}}, "", "", guest.End{}, nil},
		{"a child that stays does not hold it up", Exec{Args: []string{"sh", "-c", "sleep 30 & echo $!"}}, "*", "", guest.End{}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			row.e.Stdout, row.e.Stderr = &out, &errs
			if row.e.Env == nil {
				row.e.Env = environment
			}
			if row.e.Dir == "" {
				row.e.Dir = "/"
			}
			cmd, err := c.Start(t.Context(), row.e)
			if err != nil {
				t.Fatal(err)
			}
			end, err := cmd.Wait(within(t))
			if row.out == "*" {
				if _, e := fmt.Sscan(out.String(), new(int)); e != nil {
					t.Errorf("stdout %q", out.String())
				}
				row.out = out.String()
				var pid int
				fmt.Sscan(out.String(), &pid)
				defer syscall.Kill(pid, syscall.SIGKILL)
			}
			if end != row.end || !errors.Is(err, row.fails) || out.String() != row.out || errs.String() != row.err {
				t.Errorf("%+v %v, stdout %.80q (%d), stderr %.80q", end, err, out.String(), out.Len(), errs.String())
			}
		})
	}
}

// lines passes on what is written, for a test that waits for it.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func newLines() *lines { return &lines{more: make(chan struct{}, 1)} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *lines) await(t *testing.T, what string) {
	t.Helper()
	for end := time.After(patience); ; {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		if strings.Contains(text, what) {
			return
		}
		select {
		case <-l.more:
		case <-end:
			t.Errorf("%q never came: %q", what, text)
			return
		}
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	c := open(t)
	screen := newLines()
	typed, typing := io.Pipe()
	// A shell may lose a signal while it starts a process.
	const program = `
import os, signal, sys, time
size = lambda: os.write(1, b"%d %d\n" % tuple(reversed(os.get_terminal_size())))  # print would not be entered twice
signal.signal(signal.SIGINT, lambda *_: (size(), sys.exit(7)))
size()
print("got", input(), flush=True)
while True: time.sleep(0.01)`
	cmd, err := c.Start(t.Context(), Exec{Args: []string{"python3", "-c", program}, Env: environment, Dir: "/", Terminal: &guest.Size{Columns: 91, Rows: 33}, Stdin: typed, Stdout: screen})
	if err != nil {
		t.Fatal(err)
	}
	screen.await(t, "33 91")
	fmt.Fprint(typing, "hello\n")
	screen.await(t, "got hello")
	if err := cmd.Resize(guest.Size{Columns: 100, Rows: 40}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(typing, "\x03")
	end, err := cmd.Wait(within(t))
	if end.Code != 7 || err != nil {
		t.Errorf("%+v %v", end, err)
	}
	screen.await(t, "40 100")
	typing.Close()
}

// A command that does not end is interrupted, then killed.
func TestLimit(t *testing.T) {
	t.Parallel()
	c := open(t)
	const loop = "; print('up', flush=True)\nwhile True: time.sleep(0.01)"
	for _, row := range []struct {
		script string
		end    guest.End
	}{
		{"import signal, time; signal.signal(2, signal.SIG_DFL)" + loop, guest.End{Signal: 2}},
		{"import signal, sys, time; signal.signal(2, lambda *_: sys.exit(5))" + loop, guest.End{Code: 5}},
		{"import signal, time; signal.signal(2, signal.SIG_IGN)" + loop, guest.End{Signal: 9}},
	} {
		out := newLines()
		cmd, err := c.Start(t.Context(), Exec{Args: []string{"python3", "-c", row.script}, Env: environment, Dir: "/", Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		out.await(t, "up")
		ctx, cancel := context.WithCancelCause(t.Context())
		late := errors.New("late")
		cancel(late)
		if end, err := cmd.Wait(ctx); end != row.end || !errors.Is(err, late) {
			t.Errorf("%s: %+v %v", row.script, end, err)
		}
	}
}

// What a command that is ended has started ends with it, but for what has a group of its own.
func TestLimitOfGroup(t *testing.T) {
	t.Parallel()
	c := open(t)
	for _, row := range []struct {
		name, script string
		stays        bool
	}{
		{"in the background", "sleep 271 & echo $!; sleep 272", false},
		{"that ignores signals", "(trap '' INT TERM HUP; echo $BASHPID; sleep 271) & sleep 272", false},
		{"in a session of its own", "setsid sh -c 'echo $$; exec sleep 30' & sleep 272", true},
	} {
		out := newLines()
		cmd, err := c.Start(t.Context(), Exec{Args: []string{"bash", "-c", row.script}, Env: environment, Dir: "/", Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		out.await(t, "\n")
		out.mu.Lock()
		pid := strings.TrimSpace(out.text.String())
		out.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := cmd.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", row.name, err)
		}
		lives := func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err == nil && !strings.Contains(string(stat), ") Z ")
		}
		if row.stays {
			testwait.Always(t, 200*time.Millisecond, "a process "+row.name+" lives", lives)
		} else {
			testwait.Within(t, 5*time.Second, "a process "+row.name+" ends", func() bool { return !lives() })
		}
	}
}

// A signal that comes when a time limit is reached, as by who waits for the command, spares nothing of its group.
func TestAttackLimitSpared(t *testing.T) {
	t.Parallel()
	c := open(t)
	out := newLines()
	script := "trap 'exit 0' TERM; (trap '' INT TERM HUP; echo $BASHPID; exec sleep 271) & while :; do sleep 0.01; done"
	cmd, err := c.Start(t.Context(), Exec{Args: []string{"bash", "-c", script}, Env: environment, Dir: "/", Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "\n")
	out.mu.Lock()
	pid := strings.TrimSpace(out.text.String())
	out.mu.Unlock()
	<-cmd.stop(syscall.SIGCONT)
	if err := cmd.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	got := "ended"
	if !testwait.Holds(5*time.Second, func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}) {
		got = "lives"
	}
	attack.Check(t, "what a command has started that reached its time limit, and was sent a signal then", "ended", got)
}

// A command that is stopped before it becomes its program holds up no other.
func TestStopped(t *testing.T) {
	t.Parallel()
	stop := filepath.Join(t.TempDir(), "stop")
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := open(t, "STOP="+stop)
	stopped, err := c.Start(t.Context(), Exec{Args: []string{"true"}, Env: environment, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the command is stopped", func() bool {
		_, err := os.Stat(stop)
		return err != nil
	})
	other, err := c.Start(t.Context(), Exec{Args: []string{"true"}, Env: environment, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if end, err := other.Wait(within(t)); end != (guest.End{}) || err != nil {
		t.Errorf("the other: %+v %v", end, err)
	}
	late := errors.New("late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(late)
	if end, err := stopped.Wait(ctx); end.Signal != 9 || !errors.Is(err, late) {
		t.Errorf("%+v %v", end, err)
	}
}

func TestMostCommands(t *testing.T) {
	t.Parallel()
	c := open(t)
	var all []*Command
	for range contract.MaxCommands {
		cmd, err := c.Start(t.Context(), Exec{Args: []string{"sleep", "1000"}, Env: environment, Dir: "/"})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	var busy *BusyError
	if _, err := c.Start(t.Context(), Exec{Args: []string{"true"}, Env: environment}); !errors.As(err, &busy) {
		t.Errorf("one too many: %v", err)
	}
	for _, cmd := range all {
		if err := cmd.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, cmd := range all {
		if end, err := cmd.Wait(within(t)); end.Signal != 9 || err != nil {
			t.Errorf("%+v %v", end, err)
		}
	}
	cmd, err := c.Start(t.Context(), Exec{Args: []string{"true"}, Env: environment, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if end, err := cmd.Wait(within(t)); end != (guest.End{}) || err != nil {
		t.Errorf("after them: %+v %v", end, err)
	}
}

// Nothing is said while the program holds its output, and nothing is lost.
func TestHold(t *testing.T) {
	t.Parallel()
	c := open(t)
	out := newLines()
	typed, typing := io.Pipe()
	cmd, err := c.Start(t.Context(), Exec{Args: []string{"cat"}, Env: environment, Dir: "/", Stdin: typed, Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		fmt.Fprintf(typing, "line %d\n", round)
		if err := c.Hold(within(t)); err != nil {
			t.Fatal(err)
		}
		out.mu.Lock()
		before := out.text.Len()
		out.mu.Unlock()
		out.mu.Lock()
		if out.text.Len() != before {
			t.Error("something was said meanwhile")
		}
		out.mu.Unlock()
		if err := c.GoOn(nil); err != nil {
			t.Fatal(err)
		}
		out.await(t, fmt.Sprintf("line %d\n", round))
	}
	typing.Close()
	if end, err := cmd.Wait(within(t)); end != (guest.End{}) || err != nil {
		t.Errorf("%+v %v", end, err)
	}
}

// What an interpreter prints between two steps is the next one's, also where it is renewed in between.
func TestRenewKeepsOutput(t *testing.T) {
	t.Parallel()
	in := interpret(t, open(t), "python")
	if step, err := in.Run(within(t), "import threading\nthreading.Timer(0.1, lambda: print('late', flush=True)).start()", patience, io.Discard, io.Discard); err != nil || step.Code != 0 {
		t.Fatalf("%+v %v", step, err)
	}
	awaitKept(t, in, 1)
	if err := in.Renew(within(t)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if step, err := in.Run(within(t), "print('now')", patience, &out, io.Discard); err != nil || step.Code != 0 || out.String() != "late\nnow\n" {
		t.Errorf("%+v %v, stdout %q", step, err, out.String())
	}
}

// Of more than is kept between two steps the next one says how much it was, also where another process goes on with the session.
func TestTooMuchBetweenSteps(t *testing.T) {
	t.Parallel()
	c := open(t)
	in := interpret(t, c, "python")
	if step, err := in.Run(within(t), "import threading, os\nthreading.Timer(0.1, lambda: os.write(1, b'x' * 300000)).start()", patience, io.Discard, io.Discard); err != nil || step.Code != 0 {
		t.Fatalf("%+v %v", step, err)
	}
	awaitKept(t, in, 300000)
	_, list := Restore(c.State([]*Interpreter{in}))
	var restored, out bytes.Buffer
	list[0].out[0].swap(&restored)
	want := strings.Repeat("x", maxKept) + fmt.Sprintf("\n[%d more bytes were printed between the steps", 300000-maxKept)
	for _, code := range []string{"print('now')", "print('then')"} {
		out.Reset()
		step, err := in.Run(within(t), code, patience, &out, io.Discard)
		if err != nil || step.Code != 0 {
			t.Fatalf("%+v %v", step, err)
		}
		if code == "print('now')" && (!strings.HasPrefix(out.String(), want) || !strings.HasSuffix(out.String(), "]\nnow\n") || !strings.HasPrefix(restored.String(), want)) {
			t.Errorf("%d bytes, restored %d: %.100q", out.Len(), restored.Len(), out.Bytes()[max(0, out.Len()-200):])
		}
	}
	if out.String() != "then\n" {
		t.Errorf("said again: %.100q", out.String())
	}
}

// awaitKept waits until an interpreter has printed so much behind its step.
func awaitKept(t *testing.T, in *Interpreter, size int64) {
	t.Helper()
	testwait.Within(t, patience, fmt.Sprintf("it has printed %d bytes", size), func() bool {
		kept, lost := in.out[0].waiting()
		return int64(len(kept))+lost >= size
	})
}

type stepRow struct {
	code, value, out string
	errs             string // that standard error holds
	exit             int
}

// interpret starts an interpreter in a folder of its own, with more variables.
func interpret(t *testing.T, c *Client, name string, more ...string) *Interpreter {
	t.Helper()
	l := Languages[slices.IndexFunc(Languages, func(l Language) bool { return l.Name == name })]
	dir := t.TempDir()
	l.Path = filepath.Join(dir, filepath.Base(l.Path))
	if err := os.WriteFile(l.Path, []byte(l.Driver), 0o644); err != nil {
		t.Fatal(err)
	}
	if name == "shell" {
		l.Env = []string{"BASH_ENV=" + l.Path}
	} else {
		l.Args = append(l.Args[:len(l.Args)-1:len(l.Args)-1], l.Path)
	}
	in, err := c.Interpret(t.Context(), l, slices.Concat(environment, more), dir)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func steps(t *testing.T, c *Client, l Language, rows []stepRow) {
	t.Helper()
	in := interpret(t, c, l.Name)
	for _, row := range rows {
		var out, errs bytes.Buffer
		step, err := in.Run(within(t), row.code, patience, &out, &errs)
		if err != nil || step.Code != row.exit || step.Value != row.value || out.String() != row.out || !strings.Contains(errs.String(), row.errs) || (row.errs == "" && errs.Len() > 0) || step.Gone {
			t.Errorf("%s:\n%+v %v\nstdout %q\nstderr %q\nwanted %+v", row.code, step, err, out.String(), errs.String(), row)
		}
	}
	// One that does not end by itself.
	for _, forever := range map[string][]string{
		"python": {"print('up', flush=True)\nwhile True: pass", "import time; print('up', flush=True)\nwhile True: time.sleep(0.01)"},
		"shell":  {"echo up; while :; do :; done"},
		"js":     {"console.log('up'); await new Promise(() => setInterval(() => {}, 1e6))"},
	}[l.Name] {
		ctx, cancel := context.WithCancelCause(t.Context())
		out := newLines()
		go func() {
			out.await(t, "up")
			cancel(errors.New("late"))
		}()
		step, err := in.Run(ctx, forever, patience, out, io.Discard)
		if err == nil || err.Error() != "late" || step.Gone || step.Code != 130 {
			t.Errorf("%s: %+v %v", forever, step, err)
		}
	}
	step, err := in.Run(within(t), rows[0].code, patience, io.Discard, io.Discard)
	if err != nil || step.Gone {
		t.Errorf("after that: %+v %v", step, err)
	}
	code := map[string]string{"python": "import os; os._exit(9)", "shell": "exit 9", "js": "process.exit(9)"}[l.Name]
	if step, err := in.Run(within(t), code, patience, io.Discard, io.Discard); err != nil || !step.Gone || step.Code != 9 || !in.Ended() {
		t.Errorf("exit: %+v %v", step, err)
	}
}

// pythonSteps are steps of one session, in turn: the code, its value, stdout, a part of stderr, and the exit code.
var pythonSteps = []stepRow{
	{"x = 41", "", "", "", 0},
	{"x + 1", "42", "", "", 0},
	{"print('a'); y = [x]\ny", "[41]", "a\n", "", 0},
	{"import math, os\nos.chdir('/usr')", "", "", "", 0},
	{"os.getcwd(), math.pi > 3", "('/usr', True)", "", "", 0},
	{"def f():\n    raise ValueError('no')\nf()", "", "", "Traceback (most recent call last):\n  File \"<step 6>\", line 3, in <module>\n    f()\n  File \"<step 6>\", line 2, in f\n    raise ValueError('no')\nValueError: no\n", 1},
	{"1 +", "", "", "SyntaxError", 1},
	{"import asyncio\nawait asyncio.sleep(0.01)\nx", "41", "", "", 0},
	{"import sys; sys.exit(4)", "", "", "", 4},
	{"class A: pass\nimport pickle\npickle.loads(pickle.dumps(A())).__class__ is A", "True", "", "", 0},
	{"None", "", "", "", 0},
	{"'ü\\0'", "'ü\\x00'", "", "", 0},
	{"input()", "", "", "EOFError", 1},
	{"exit()", "", "", "", 0},
	{"input()", "", "", "EOFError", 1},
	{"def f(x: Undefined): pass", "", "", "NameError", 1},
	{"from __future__ import annotations\ndef f(x: Undefined): pass\n(lambda: [f.__annotations__ for f in [f]])()", "[{'x': 'Undefined'}]", "", "", 0},
	{"def g(x: Undefined): pass\ng.__annotations__", "{'x': 'Undefined'}", "", "", 0},
	{"x = 42\nfrom __future__ import annotations", "", "", "must occur at the beginning", 1},
}

// shellSteps are steps of one session, in turn: the code, its value, stdout, a part of stderr, and the exit code.
var shellSteps = []stepRow{
	{"x=41", "", "", "", 0},
	{"echo $((x + 1)); cd /usr", "", "42\n", "", 0},
	{"pwd; false", "", "/usr\n", "", 1},
	{"f() { echo in f; return 7; }", "", "", "", 0},
	{"f", "", "in f\n", "", 7},
	{"no-such-command", "", "", "not found", 127},
	{"if then", "", "", "syntax error", 2},
	{"cat", "", "", "", 0},
	{"set -- a 'b c'; echo \"$#\"; declare -A m=([k]=v); declare n=5; typeset -i i=6; alias hi='echo hello'; false", "", "2\n", "", 1},
	{"echo \"$? $2 ${m[k]} $n $i $LINENO $0\"; hi", "", "1 b c v 5 6 1 bash\nhello\n", "", 0},
	{"local z=1", "", "", "line 1: local: can only be used in a function", 1},
	{"exec 9<<<kept", "", "", "", 0},
	{"cat <&9", "", "kept\n", "", 0},
	{"exec no-such-program; echo $?\necho $BASH_ENV", "", "127\n\n", "not found", 0},
	{"cat <<-end\n\t$((1 + 1))\nend\ncat <<'end'\n$x\nend", "", "2\n$x\n", "", 0},
	{"echo 'a'\r\necho \"$(echo \"b $(echo \"c\")\")\"", "", "a\r\nb c\n", "", 0},
	{"echo a\nif x; then\n", "", "a\n", "line 3: syntax error", 2},
	{"for i in 1 2; do\n  echo \"line $i\"\ndone", "", "line 1\nline 2\n", "", 0},
}

// jsSteps are steps of one session, in turn: the code, its value, stdout, a part of stderr, and the exit code.
var jsSteps = []stepRow{
	{"const a = 41", "", "", "", 0},
	{"const a = 1; let b = 41", "", "", "", 0},
	{"a + b", "42", "", "", 0},
	{"console.log('x'); ({ a, b })", "{ a: 1, b: 41 }", "x\n", "", 0},
	{"await new Promise((r) => setTimeout(r, 5)); b", "41", "", "", 0},
	{"async function main() { console.log('in'); return 7 }\nmain()", "7", "in\n", "", 0},
	{"import fs, { readFileSync as r } from 'node:fs'\nimport * as path from 'path'\ntypeof r + typeof fs.readFileSync + path.join('a', 'b')", "'functionfunctiona/b'", "", "", 0},
	{"(await import('node:os')).EOL", `'\n'`, "", "", 0},
	{"require('path').sep", "'/'", "", "", 0},
	{"import.meta.dirname === process.cwd()", "true", "", "", 0},
	{"function f() {\n  null.x\n}\nf()", "", "", "at f (step-11:2:8)", 1},
	{"throw 5", "", "", "Uncaught 5\n", 1},
	{"import none from 'no-such-module'", "", "", " {\n  code: 'MODULE_NOT_FOUND',\n  requireStack: [", 1},
	{"throw Object.assign(new Error('outer', { cause: new Error('inner') }), { code: 5 })", "", "", " {\n  code: 5,\n  [cause]: Error: inner\n      at step-", 1},
	{"let 1", "", "", "SyntaxError: Unexpected", 1},
	{"globalThis.ran = (globalThis.ran ?? 0) + 1; await null; JSON.parse('{')", "", "", "SyntaxError: Expected property name", 1}, // not to be run again
	{"throw new SyntaxError('of ' + ++ran)", "", "", "SyntaxError: of 2", 1},
	{"#!/bin/node\nran++; eval('1 +')", "", "", "SyntaxError: Unexpected end", 1},
	{"ran", "3", "", "", 0},
	{"Promise.reject(new Error('z'))", "", "", "Error: z", 1},
	{"'import(\"x\")' // import(y)", `'import("x")'`, "", "", 0},
	{"class A {}; new A()", "A {}", "", "", 0},
	{"10n ** 20n", "100000000000000000000n", "", "", 0},
	{"export const e = 5; e", "5", "", "", 0},
	{"undefined", "", "", "", 0},
	{"NaN", "NaN", "", "", 0},
	{"process.argv.length + process.execArgv.length", "1", "", "", 0},
	{"Symbol('q')", "Symbol(q)", "", "", 0},
	{"'last'", "'last'", "", "", 0},
	{"_ + 1", "'last1'", "", "", 0},
	{"delete globalThis._", "true", "", "", 0},
	{"_", "true", "", "", 0},
	{"_", "true", "", "", 0},
	{"var _ = true; undefined", "", "", "", 0}, // which it was
	{"2", "2", "", "", 0},
	{"_", "true", "", "", 0},
	{"function _() { return 'mine' }", "", "", "", 0},
	{"3", "3", "", "", 0},
	{"_()", "'mine'", "", "", 0},
	{"process.exitCode = 3; 1", "1", "", "", 3},
	{"1", "1", "", "", 0},
}

func TestInterpreters(t *testing.T) {
	t.Parallel()
	c := open(t)
	byName := map[string]Language{}
	for _, l := range Languages {
		byName[l.Name] = l
	}
	t.Run("python", func(t *testing.T) {
		steps(t, c, byName["python"], pythonSteps)

	})
	t.Run("shell", func(t *testing.T) {
		steps(t, c, byName["shell"], shellSteps)

	})
	t.Run("js", func(t *testing.T) {
		if _, err := exec.LookPath("node"); err != nil {
			t.Skip("needs node on this host")
		}
		steps(t, c, byName["js"], jsSteps)

	})
}
