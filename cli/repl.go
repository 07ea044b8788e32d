package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
)

func (a *app) replCommand() *cobra.Command {
	var f runFlags
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "repl [LANGUAGE] [flags]",
		Short: "Run code line by line as you type it, in a fresh machine",
		Long: `Repl starts a machine, runs in it what you type, and ends it with your input. What one
entry defines is there in the next. An entry goes on while a bracket or a block is open; an
empty line ends it. The arrow keys recall earlier lines. Ctrl-C drops a line, or interrupts
the code; Ctrl-D or exit leaves.`,
		Example: `  unitask repl python
  unitask repl js --allow-net api.github.com
  echo '6 * 7' | unitask repl python`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "js"
			if len(args) == 1 {
				name = args[0]
			}
			l, _, err := language.Named(name)
			if err != nil {
				return usage(fmt.Errorf("language %.40q: %w", name, err))
			}
			ctx := cmd.Context()
			s, end, err := a.ownSession(ctx, cmd, f, "", l.Name, life)
			if err != nil {
				return err
			}
			defer end()
			return a.evaluate(ctx, l, func(ctx context.Context, code string) error {
				stdout, stderr := a.output(a.std.Stdout, f), a.output(a.std.Stderr, f)
				res, err := s.Run(ctx, unitask.Step{Code: code, Language: l.Name, Stdout: stdout, Stderr: stderr})
				err = errors.Join(err, stdout.Close(), stderr.Close())
				a.code = unitask.ExitCode(res, err)
				if res == nil {
					return err
				}
				if res.Value != "" {
					fmt.Fprintln(a.std.Stdout, visible(res.Value))
				}
				a.remarks(res, "--output-bytes keeps more")
				return err
			})
		},
	}
	f.machineFlags(cmd, &life)
	cmd.Flags().BoolVar(&f.raw, "raw", false, "pass what comes back to a terminal unchanged")
	return cmd
}

func (a *app) sessionAttach() *cobra.Command {
	var f runFlags
	var timeout string
	cmd := &cobra.Command{
		Use:   "attach SESSION",
		Short: "Run code line by line as you type it, in a session",
		Long: `Attach runs in a session what you type, as unitask repl does in a fresh machine. The
session stays when you leave.`,
		Example: `  unitask session attach build
  unitask session attach build --lang shell`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			step := sessiond.Step{}
			if timeout != "" {
				d, err := parseDuration("--timeout", timeout)
				if err != nil {
					return usage(err)
				}
				step.TimeoutMS = policy.Millis(d)
			}
			l, err := a.languageOf(cmd.Context(), args[0], f.lang)
			if err != nil {
				return err
			}
			step.Language = l.Name
			return a.evaluate(cmd.Context(), l, func(ctx context.Context, code string) error {
				step := step
				step.Code = code
				req := sessiond.Request{Op: sessiond.OpRun, Session: args[0], Step: &step}
				return asFlags(cmd, a.stepWith(ctx, req, f, unitask.IO{}))
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.lang, "lang", "", "language of the code, if not the session's")
	fl.StringVar(&timeout, "timeout", "",
		"time limit of an entry: a duration, or seconds (default, and the most, the session's)")
	fl.BoolVar(&f.raw, "raw", false, "pass what comes back to a terminal unchanged")
	return cmd
}

// languageOf returns the language that a session's steps are in: the named one, or the session's own.
func (a *app) languageOf(ctx context.Context, session, name string) (*language.Language, error) {
	if name == "" {
		answer, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
		if err != nil && !errors.Is(err, sessiond.ErrNone) {
			return nil, err
		}
		i := slices.IndexFunc(answer.Sessions, func(s sessiond.View) bool { return s.ID == session || s.Name == session })
		if i < 0 {
			return nil, hint(usage(fmt.Errorf("no session %.80q", session)), "unitask session ls lists those that live")
		}
		name = answer.Sessions[i].Language
	}
	l, _, err := language.Named(name)
	if err != nil {
		return nil, usage(fmt.Errorf("--lang %.40q: %w", name, err))
	}
	return l, nil
}

// maxEntry bounds an entry, in bytes: that of a step.
const maxEntry = 1 << 20

// evaluate runs what is typed, an entry at a time, until the input ends. An error of an entry ends it, unless Ctrl-C
// has interrupted the entry.
func (a *app) evaluate(ctx context.Context, l *language.Language,
	run func(ctx context.Context, code string) error) error {
	in, err := a.entryLines()
	if err != nil {
		return err
	}
	defer in.leave()
	alive, ended := context.WithCancel(context.WithoutCancel(ctx)) // Ctrl-C cancels ctx
	defer ended()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	for entry := ""; ; {
		prompt := l.Name + "> "
		if entry != "" {
			prompt = strings.Repeat(".", len(l.Name)) + "> "
		}
		line, err := in.read(prompt)
		if errors.Is(err, errDropped) {
			entry = ""
			continue
		}
		if err != nil && (!errors.Is(err, io.EOF) || entry == "") {
			return endOfInput(err)
		}
		entry += line + "\n"
		switch {
		case len(entry) > maxEntry:
			return usage(fmt.Errorf("an entry has more than %s", mebibytes(maxEntry)))
		case err == nil && l.Unfinished(entry):
			continue
		case slices.Contains([]string{"exit", "exit()", "quit", "quit()", ".exit"}, strings.TrimSpace(entry)):
			return nil
		case strings.TrimSpace(entry) != "":
			if err := interruptible(alive, signals, entry, run); err != nil {
				return err
			}
			if in.typed {
				a.code = 0 // the person has seen it
			}
		}
		entry = ""
	}
}

// endOfInput returns nil at the end of the input.
func endOfInput(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// interruptible runs an entry; Ctrl-C interrupts it, and it alone.
func interruptible(ctx context.Context, signals <-chan os.Signal, entry string,
	run func(ctx context.Context, code string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- run(ctx, entry) }()
	var stopped os.Signal
	for {
		select {
		case err := <-done:
			if stopped == os.Interrupt && ctx.Err() != nil {
				return nil
			}
			return err
		case stopped = <-signals:
			cancel()
		}
	}
}

// entryLines reads lines: with a prompt and a history from a terminal, else as they are.
type entryLines struct {
	typed bool
	read  func(prompt string) (string, error)
	leave func()
}

func (a *app) entryLines() (entryLines, error) {
	in, ok := a.std.Stdin.(*os.File)
	if !ok || !isTerminal(in) || !isTerminal(a.std.Stdout) {
		scanner := bufio.NewScanner(a.std.Stdin)
		scanner.Buffer(nil, maxEntry)
		return entryLines{leave: func() {}, read: func(string) (string, error) {
			if scanner.Scan() {
				return scanner.Text(), nil
			}
			if err := scanner.Err(); err != nil {
				return "", usage(fmt.Errorf("read standard input: %w", err))
			}
			return "", io.EOF
		}}, nil
	}
	home, err := a.homeFolder()
	if err != nil {
		return entryLines{}, err
	}
	history := openHistory(filepath.Join(home, "repl_history"))
	keys := &lineKeys{from: in}
	editor := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys, a.std.Stdout}, "")
	editor.History = history
	return entryLines{typed: true, leave: history.close, read: func(prompt string) (string, error) {
		was, err := term.MakeRaw(int(in.Fd())) // not while code runs: Ctrl-C then is a signal
		if err != nil {
			return "", err
		}
		defer func() { _ = term.Restore(int(in.Fd()), was) }()
		size := sizeOf(in)
		_ = editor.SetSize(int(size.Columns), int(size.Rows))
		editor.SetPrompt(prompt)
		keys.dropped = false
		line, err := editor.ReadLine()
		switch {
		case errors.Is(err, io.EOF):
			_, _ = io.WriteString(a.std.Stdout, "\r\n")
		case err == nil && keys.dropped:
			err = errDropped
		}
		return line, err
	}}, nil
}

// errDropped means that Ctrl-C dropped what was typed.
var errDropped = errors.New("dropped")

// lineKeys turns Ctrl-C into the keys that drop a line and end it.
type lineKeys struct {
	from    io.Reader
	dropped bool // since read has begun
	left    []byte
}

const ctrlU = 0x15

func (k *lineKeys) Read(p []byte) (int, error) {
	if len(k.left) > 0 {
		n := copy(p, k.left)
		k.left = k.left[n:]
		return n, nil
	}
	n, err := k.from.Read(p)
	if at := bytes.IndexByte(p[:n], ctrlC); at >= 0 {
		k.dropped, k.left = true, []byte{'\r'}
		p[at] = ctrlU
		n = at + 1 // what was typed behind it is dropped, too
	}
	return n, err
}
