package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/unitask/unitask"
)

// With -t the code gets a terminal, and with -i what is typed on ours. Ours is then raw: keys are sent to the
// code unchanged, also Ctrl-C, which the code's terminal turns into a signal. So there is another way to stop:
// Ctrl-C twice.

// twice bounds the time between two Ctrl-C, with no key between them, that end the run.
const twice = 2 * time.Second

const ctrlC = 0x03

// errTyped is the cause when Ctrl-C ended a run.
var errTyped = errors.New("interrupted")

// interactive gives a run a terminal like the command's. restore resets ours; stop, which ends the run, is called
// when Ctrl-C was typed twice.
func (a *app) interactive(f runFlags, streams *unitask.IO, stop context.CancelCauseFunc) (restore func(), err error) {
	restore = func() {}
	if f.input {
		streams.Stdin = a.std.Stdin
	}
	if !f.tty {
		return restore, nil
	}
	out, ok := a.std.Stdout.(*os.File)
	if !ok || !term.IsTerminal(int(out.Fd())) {
		return restore, usage(errors.New("-t: standard output is no terminal"))
	}
	resized := make(chan unitask.TerminalSize, 1)
	streams.Terminal = &unitask.Terminal{Name: os.Getenv("TERM"), Size: sizeOf(out), Resized: resized}
	changed := make(chan os.Signal, 1)
	over := make(chan struct{})
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for {
			select {
			case <-over:
				return
			case <-changed:
			}
			select { // only the newest matters
			case <-resized:
			default:
			}
			resized <- sizeOf(out)
		}
	}()
	restore = func() {
		signal.Stop(changed)
		close(over)
	}
	in, ok := a.std.Stdin.(*os.File)
	if !f.input || !ok || !term.IsTerminal(int(in.Fd())) {
		return restore, nil
	}
	was, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		restore()
		return func() {}, err
	}
	streams.Stdin = &keys{from: in, now: time.Now, stop: func() { stop(errTyped) }}
	return func() {
		signal.Stop(changed)
		close(over)
		_ = term.Restore(int(in.Fd()), was)
	}, nil
}

// readsFolder reports, before anything begins, that standard input is a folder, which can't be read.
func (a *app) readsFolder() error {
	f, ok := a.std.Stdin.(*os.File)
	if !ok {
		return nil
	}
	if st, err := f.Stat(); err != nil || !st.IsDir() {
		return nil
	}
	return hint(usage(errors.New("standard input is a folder")),
		"--dir brings a folder, < FILE a file's text; </dev/null is no input")
}

// sizeOf returns a terminal's size.
func sizeOf(tty *os.File) unitask.TerminalSize {
	columns, rows, err := term.GetSize(int(tty.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		return unitask.TerminalSize{Columns: 80, Rows: 24}
	}
	return unitask.TerminalSize{Columns: uint16(min(columns, 1<<16-1)), Rows: uint16(min(rows, 1<<16-1))}
}

// keys passes on what is typed, and calls stop at the second Ctrl-C in a row.
type keys struct {
	from io.Reader
	now  func() time.Time
	stop func()
	last time.Time // of a Ctrl-C, with nothing typed since
}

func (k *keys) Read(p []byte) (int, error) {
	n, err := k.from.Read(p)
	for _, c := range p[:n] {
		now := k.now()
		switch {
		case c != ctrlC:
			k.last = time.Time{}
		case !k.last.IsZero() && now.Sub(k.last) < twice:
			k.stop()
		default:
			k.last = now
		}
	}
	return n, err
}

// SetReadDeadline ends a Read, if the terminal supports that.
func (k *keys) SetReadDeadline(at time.Time) error {
	if d, ok := k.from.(interface{ SetReadDeadline(time.Time) error }); ok {
		return d.SetReadDeadline(at)
	}
	return os.ErrNoDeadline
}

// colors returns the value of FORCE_COLOR for code that prints on this terminal. "" means that this is not a terminal,
// or that it wants no colours (no-color.org).
func colors(to any, environment func(string) string) string {
	name := environment("TERM")
	switch {
	case !isTerminal(to) || environment("NO_COLOR") != "" || name == "dumb":
		return ""
	case environment("FORCE_COLOR") != "":
		return environment("FORCE_COLOR")
	case environment("COLORTERM") == "truecolor" || environment("COLORTERM") == "24bit":
		return "3"
	case strings.Contains(name, "256"):
		return "2"
	}
	return "1"
}
