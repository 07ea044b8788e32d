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
	out, err := exec.Command("gcc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
		"-fno-sanitize-recover=all", "-Wl,--wrap=fchown",
		"-o", program, "testdata/hosted.c", "../init/session.c", "../init/sessionstart.c", "../init/sessionfiles.c",
		"../init/sessionforward.c", "../init/sessionmore.c", "../init/sessioninfo.c",
		"../init/sessionwatch.c").CombinedOutput()
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
		{"its streams apart", Exec{Args: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}}, "out\n", "err\n",
			guest.End{Code: 3}, nil},
		{"an empty argument", Exec{Args: []string{"sh", "-c", `printf '%s|' "$#" "$@"`, "x", "", "a b"}}, "2||a b|", "",
			guest.End{}, nil},
		{"its folder", Exec{Args: []string{"pwd"}, Dir: "/usr"}, "/usr\n", "", guest.End{}, nil},
		{"its environment", Exec{Args: []string{"env"}, Env: append(environment, "A=1")},
			strings.Join(append(environment, "A=1"), "\n") + "\n", "", guest.End{}, nil},
		{"a signal", Exec{Args: []string{"sh", "-c", "kill -9 $$"}}, "", "", guest.End{Signal: 9}, nil},
		{"no such program", Exec{Args: []string{"no-such-program"}}, "", "", guest.End{}, syscall.ENOENT},
		{"no such folder", Exec{Args: []string{"true"}, Dir: "/no/such"}, "", "", guest.End{}, syscall.ENOENT},
		{"a folder as a program", Exec{Args: []string{"/usr"}}, "", "", guest.End{}, syscall.EACCES},
		{"a megabyte through it", Exec{Args: []string{"cat"}, Stdin: strings.NewReader(long)}, long, "", guest.End{}, nil},
		{"input that nobody reads", Exec{Args: []string{"true"}, Stdin: strings.NewReader(long)}, "", "", guest.End{}, nil},
		{"no input", Exec{Args: []string{"cat"}}, "", "", guest.End{}, nil},
		{"a child that stays does not hold it up", Exec{Args: []string{"sh", "-c", "sleep 30 & echo $!"}}, "*", "",
			guest.End{}, nil},
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

// lines passes on its input, for a test that waits for it.
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
	cmd, err := c.Start(t.Context(), Exec{Args: []string{"python3", "-c", program}, Env: environment, Dir: "/",
		Terminal: &guest.Size{Columns: 91, Rows: 33}, Stdin: typed, Stdout: screen})
	if err != nil {
		t.Fatal(err)
	}
	screen.await(t, "33 91")
	fmt.Fprint(typing, "hello\n")
	screen.await(t, "got hello")
	if err := cmd.Resize(t.Context(), guest.Size{Columns: 100, Rows: 40}); err != nil {
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
		cmd, err := c.Start(t.Context(), Exec{Args: []string{"python3", "-c", row.script}, Env: environment, Dir: "/",
			Stdout: out})
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

// The processes that a command has started end with it, except those in another process group.
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
		cmd, err := c.Start(t.Context(), Exec{Args: []string{"bash", "-c", row.script}, Env: environment, Dir: "/",
			Stdout: out})
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

// If another signal comes when a time limit is reached, for example from the waiting caller, the whole process group
// still ends.
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
	if err := cmd.Signal(t.Context(), syscall.SIGTERM); err != nil {
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

// A command stopped before its exec does not delay others.
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
		if err := cmd.Signal(t.Context(), syscall.SIGKILL); err != nil {
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

// The program sends nothing while it must hold its output, and loses nothing.
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
		if err := c.Continue(nil); err != nil {
			t.Fatal(err)
		}
		out.await(t, fmt.Sprintf("line %d\n", round))
	}
	typing.Close()
	if end, err := cmd.Wait(within(t)); end != (guest.End{}) || err != nil {
		t.Errorf("%+v %v", end, err)
	}
}
