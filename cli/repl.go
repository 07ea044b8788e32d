package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

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
empty line ends a block of Python, and two end each entry. The arrow keys recall earlier
lines. Ctrl-C drops a line, or interrupts the code; Ctrl-D or exit leaves.`,
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

// languageOf returns the language of a session's steps: the named one, or the session's own.
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

// maxEntry bounds an entry, in bytes: the limit of a step.
const maxEntry = 1 << 20

var errLongEntry = usage(fmt.Errorf("an entry has more than %s", mebibytes(maxEntry)))

// evaluate runs the input, an entry at a time, until the input ends or a signal comes. An entry's error ends it, unless
// a person has interrupted the entry with Ctrl-C.
func (a *app) evaluate(ctx context.Context, l *language.Language,
	run func(ctx context.Context, code string) error) error {
	in, err := a.entryLines()
	if err != nil {
		return err
	}
	defer in.leave()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	if ctx.Err() != nil { // a signal came earlier
		return a.stopped()
	}
	alive, ended := context.WithCancel(context.WithoutCancel(ctx))
	defer ended()
	for entry := ""; ; {
		prompt := l.Name + "> "
		if entry != "" {
			prompt = strings.Repeat(".", len(l.Name)) + "> "
		}
		line, err := in.next(prompt, signals)
		switch {
		case errors.Is(err, errDropped):
			entry = ""
			continue
		case errors.Is(err, errStopped):
			return a.stopped()
		case err != nil && (!errors.Is(err, io.EOF) || entry == ""):
			return endOfInput(err)
		}
		entry += line + "\n"
		switch {
		case len(entry) > maxEntry:
			return errLongEntry
		case err == nil && l.Unfinished(entry):
			continue
		case slices.Contains([]string{"exit", "exit()", "quit", "quit()", ".exit"}, strings.TrimSpace(entry)):
			return nil
		case strings.TrimSpace(entry) != "":
			stop, err := interruptible(alive, signals, entry, run)
			switch {
			case stop == os.Interrupt && in.typed: // it only ended the entry
			case err != nil:
				return err
			case stop != nil:
				return a.stopped()
			}
			if in.typed {
				a.code = 0 // the person has seen the error
			}
		}
		entry = ""
	}
}

// errStopped means that a signal ended the input.
var errStopped = errors.New("stopped by a signal")

// stopped returns the error of an input that a signal ended.
func (a *app) stopped() error {
	a.code = unitask.ExitCancelled
	return errStopped
}

// endOfInput replaces io.EOF with nil.
func endOfInput(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// interruptible runs an entry, which a signal interrupts. It returns that signal; SIGTERM takes precedence over Ctrl-C.
func interruptible(ctx context.Context, signals <-chan os.Signal, entry string,
	run func(ctx context.Context, code string) error) (stop os.Signal, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- run(ctx, entry) }()
	for {
		select {
		case err := <-done:
			return stop, err
		case s := <-signals:
			if stop == nil || stop == os.Interrupt {
				stop = s
			}
			cancel()
		}
	}
}
