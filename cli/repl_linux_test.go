package cli

import (
	"context"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/language"
)

// typedAt starts to evaluate a person's input. It sends each entry to entries; ended has the error.
func typedAt(t *testing.T, std Streams) (a *app, entries chan string, ended chan error) {
	t.Helper()
	a = &app{std: std, home: t.TempDir(), ui: newUI(std)}
	l, _, err := language.Named("python")
	if err != nil {
		t.Fatal(err)
	}
	entries, ended = make(chan string, 100), make(chan error, 1)
	go func() {
		ended <- a.evaluate(t.Context(), l, func(ctx context.Context, code string) error {
			entries <- code
			if strings.HasPrefix(code, "wait") {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		})
	}()
	return a, entries, ended
}

// Unusual input becomes an entry, or Ctrl-C drops it. It never stops the editor.
func TestOddKeys(t *testing.T) {
	for name, c := range map[string]struct{ typed, entry string }{
		"invalid UTF-8":              {"'a\xff\xe2b'\r", "'a??b'\n"},
		"the replacement character":  {"'\ufffd'\r", "'?'\n"},
		"a paste in brackets":        {"\x1b[200~x = 1\r\x1b[201~", "x = 1\n"},
		"Escape, Enter":              {"1\x1b\r", "1\n"},
		"Escape, Ctrl-C":             {"x\x1b\x03\r2\r", "2\n"},
		"Ctrl-C in a paste":          {"\x1b[200~x\x03\r2\r", "2\n"},
		"a sequence without an end":  {"\x1b[" + strings.Repeat("1", 1000) + "\x03\r2\r", "2\n"},
		"half a character, Ctrl-C":   {"x\xe2\x03\r2\r", "2\n"},
		"Ctrl-C in front of a text":  {"secret\x01\x03\r2\r", "2\n"},
		"a paste that never ends":    {"\x1b[200~x\x03\r2\r", "2\n"},
		"half a sequence in a paste": {"\x1b[200~x\x1b[20\x03\r2\r", "2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			y := newTypist(t, 80, 24)
			a, entries, ended := typedAt(t, Streams{Stdin: y.tty, Stdout: y.tty, Stderr: y.tty})
			before, after, drops := strings.Cut(c.typed, "\x03\r")
			if drops {
				y.types("python> ", before+"\x03") // keys pressed directly after it are dropped
				y.types("python> ", after)
			} else {
				y.types("python> ", before)
			}
			if got := <-entries; got != c.entry {
				t.Errorf("%q", got)
			}
			y.types("python> ", "\x04")
			if err := <-ended; err != nil {
				t.Error(err)
			}
			typed, err := os.ReadFile(a.home + "/repl_history")
			if err != nil || string(typed) != c.entry {
				t.Errorf("the history has %q, %v", typed, err)
			}
		})
	}
}

// SIGTERM ends a wait for a line, and restores the terminal. Ctrl-C does so without a terminal.
func TestSignalsAtPrompt(t *testing.T) {
	y := newTypist(t, 80, 24)
	before, err := unix.IoctlGetTermios(int(y.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	kill := func(s syscall.Signal) {
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Error(err)
		}
	}
	a, entries, ended := typedAt(t, Streams{Stdin: y.tty, Stdout: y.tty, Stderr: y.tty})
	y.types("python> ", "")
	kill(syscall.SIGINT) // of a Ctrl-C that came a moment too late
	y.types("", "2\r")
	<-entries
	y.types("python> ", "")
	kill(syscall.SIGTERM)
	if err := <-ended; err == nil || a.code != unitask.ExitCancelled {
		t.Errorf("%v, exit code %d", err, a.code)
	}
	after, err := unix.IoctlGetTermios(int(y.tty.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %+v, was %+v, %v", after, before, err)
	}

	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		for _, text := range []string{"1\n", "wait\n2\n"} { // while waiting for a line; within an entry
			in, out := io.Pipe()
			a, entries, ended = typedAt(t, Streams{Stdin: in, Stdout: io.Discard, Stderr: io.Discard})
			if _, err := io.WriteString(out, text); err != nil {
				t.Fatal(err)
			}
			<-entries
			kill(s)
			if err := <-ended; err == nil || a.code != unitask.ExitCancelled && !strings.HasPrefix(text, "wait") {
				t.Errorf("%s in %q: %v, exit code %d", s, text, err, a.code)
			}
			if len(entries) > 0 {
				t.Errorf("%s in %q: %q ran", s, text, <-entries)
			}
			out.Close()
		}
	}
}

// Two consoles share a history file: the entries of each stay complete.
func TestHistoryShared(t *testing.T) {
	name := t.TempDir() + "/history"
	one := openHistory(name)
	one.Add("first")
	two := openHistory(name)
	one.Add("second")
	two.Add("third")
	one.close()
	two.close()
	if text, err := os.ReadFile(name); err != nil || string(text) != "first\nsecond\nthird\n" {
		t.Errorf("%q, %v", text, err)
	}
}
