package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

func (a *app) sessionRun() *cobra.Command {
	var f runFlags
	var timeout string
	cmd := &cobra.Command{
		Use:   "run SESSION (FILE | --code STRING | -)",
		Short: "Run code in a session's interpreter",
		Long: `Run runs a step in the session's interpreter of its language: what it defines is there
in the next one. The value of a last expression is printed behind what the code prints.
The exit code is as run's.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			step := &sessiond.Step{Code: f.code, Language: f.lang}
			var err error
			switch given := cmd.Flags().Changed("code"); {
			case given == (len(args) == 2):
				return usage(errors.New("give the code once: a FILE, --code STRING or -"))
			case !given && args[1] == "-":
				step.Code, err = readCode("standard input", a.std.Stdin)
			case !given:
				var req unitask.Request
				err = fileCode(&req, args[1])
				step.Code = req.Code
			}
			if err != nil {
				return err
			}
			if timeout != "" {
				d, err := parseDuration("--timeout", timeout)
				if err != nil {
					return usage(err)
				}
				step.TimeoutMS = policy.Millis(d)
			}
			return a.step(cmd, sessiond.Request{Op: sessiond.OpRun, Session: args[0], Step: step}, f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.code, "code", "", "the code itself")
	fl.StringVar(&f.lang, "lang", "", "language of the code, if not the session's")
	stepFlags(fl, &f, &timeout)
	return cmd
}

func stepFlags(fl *pflag.FlagSet, f *runFlags, timeout *string) {
	fl.StringVar(timeout, "timeout", "", "time limit: a duration, or seconds (default, and the most, the session's)")
	resultFlag(fl, &f.json)
	fl.BoolVar(&f.raw, "raw", false, "pass what comes back to a terminal unchanged")
	outFlags(fl, f)
}

// outFlags are the flags of a step or a command whose files come back.
func outFlags(fl *pflag.FlagSet, f *runFlags) {
	fl.StringVar(&f.out, "out", "",
		"copy what it leaves in /out into this folder; "+
			"what exists there stays, as do names that begin with a dot and, unless the folder is empty, files that tools run")
	fl.BoolVar(&f.outReplace, "out-replace", false, "have --out replace files that exist")
}

// openOut opens the folder of --out; nil means that there is none.
func (f *runFlags) openOut() (*record.OutFolder, error) {
	if err := f.outFolder(); err != nil || f.out == "" {
		return nil, err
	}
	out, err := record.OpenOut(f.out, f.outReplace)
	if err != nil {
		return nil, usage(fmt.Errorf("--out: %w", err))
	}
	return out, nil
}

// bringOut copies what a step or a command has left in /out into a folder, and notes in the result what it did not
// copy. Without a folder nothing is copied.
func (a *app) bringOut(res *unitask.Result, out *record.OutFolder) error {
	var err error
	if out != nil && len(res.Artifacts) > 0 {
		var home string
		if home, err = a.homeFolder(); err == nil {
			res.ArtifactsLeft, err = record.Open(layout.Dir(home).Runs()).CopyArtifacts(res.RunID, res.Artifacts, out)
		}
		if err != nil {
			err = &unitask.HostError{Op: "out", Err: err}
		}
	}
	res.NoteUndelivered()
	return err
}

func (a *app) sessionExec() *cobra.Command {
	var f runFlags
	var timeout, dir string
	var detach bool
	cmd := &cobra.Command{
		Use:   "exec [flags] SESSION [--] COMMAND [ARG...]",
		Short: "Run a command in a session's machine",
		Long: `Exec runs a command beside the session's interpreters. -i passes standard input on,
-t gives it a terminal like this one. The exit code is the command's. --detach prints the
id of its run and leaves it in the background, until it or its session ends.`,
		Example: `  unitask session exec build -- ls -l
  unitask session wait $(unitask session exec --detach build -- make)
  unitask session exec -it build bash`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, args := args[0], args[1:]
			if args[0] == "--" {
				args = args[1:]
			}
			if len(args) == 0 {
				return usage(errors.New("no command was given"))
			}
			env, err := parseEnv(f.env)
			if err != nil {
				return usage(err)
			}
			command := sessiond.Command{Args: args, Dir: dir, Env: env, Detach: detach}
			if timeout != "" {
				d, err := parseDuration("--timeout", timeout)
				if err != nil {
					return usage(err)
				}
				command.TimeoutMS = policy.Millis(d)
			}
			if f.tty && f.json {
				return usage(errors.New("-t does not go with --json"))
			}
			if command.Detach && (f.tty || f.input || f.json || f.out != "") {
				return usage(errors.New("--detach does not go with -t, -i, --json and --out"))
			}
			if f.input {
				if err := a.readsFolder(); err != nil {
					return err
				}
			}
			return a.execIn(cmd.Context(), name, command, f)
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.BoolVarP(&f.tty, "tty", "t", false, "give it a terminal like this one")
	fl.BoolVarP(&f.input, "interactive", "i", false, "pass standard input to it")
	fl.BoolVarP(&detach, "detach", "d", false, "leave it in the background, and print the id of its run")
	fl.StringVar(&dir, "dir", "", "the folder it runs in (default /work)")
	fl.StringArrayVar(&f.env, "env", nil, "NAME=VALUE for its environment; repeatable")
	stepFlags(fl, &f, &timeout)
	return cmd
}

// execIn runs a command in an existing session.
func (a *app) execIn(ctx context.Context, session string, command sessiond.Command, f runFlags) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var streams unitask.IO
	restore, err := a.interactive(f, &streams, stop)
	if err != nil {
		return err
	}
	defer restore()
	command.Input = streams.Stdin != nil
	req := sessiond.Request{Op: sessiond.OpExec, Session: session, Command: &command}
	return a.stepWith(ctx, req, f, streams)
}

func (a *app) step(cmd *cobra.Command, req sessiond.Request, f runFlags) error {
	return asFlags(cmd, a.stepWith(cmd.Context(), req, f, unitask.IO{}))
}

// stepWith runs a step or a command and prints its result.
func (a *app) stepWith(ctx context.Context, req sessiond.Request, f runFlags, with unitask.IO) error {
	if f.out != "" && a.sessionFleet.url != "" {
		return usage(
			errors.New("--out does not go with --fleet: have the files written below /work, and fetch them with session cp"))
	}
	out, err := f.openOut()
	if err != nil {
		return err
	}
	if out != nil {
		defer out.Close()
	}
	stdout, stderr := a.output(a.std.Stdout, f), a.output(a.std.Stderr, f)
	streams := sessiond.Streams{Stdin: with.Stdin, Stdout: stdout, Stderr: stderr}
	var outs, errs strings.Builder
	if f.json {
		streams.Stdout, streams.Stderr = &outs, &errs
	}
	if t := with.Terminal; t != nil {
		req.Command.Terminal, req.Command.Size, streams.Resized = t.Name, &t.Size, t.Resized
	}
	stop := a.answering(ctx, req.Session, f)
	answer, err := a.asked(ctx, req, streams)
	stop()
	err = errors.Join(err, stdout.Close(), stderr.Close())
	if answer.Run != "" {
		fmt.Fprintln(a.std.Stdout, answer.Run)
	}
	res := answer.Result
	if res == nil || err != nil {
		return err
	}
	err = a.bringOut(res, out)
	a.code = unitask.ExitCode(res, err)
	if f.json {
		res.Stdout, res.Stderr = []byte(outs.String()), []byte(errs.String())
		if err != nil {
			res.Error = strings.TrimPrefix(res.Error+"; "+err.Error(), "; ")
		}
		return a.ui.json(json.RawMessage(must(json.Marshal(res))))
	}
	if res.Value != "" {
		shown := a.output(a.std.Stdout, f)
		_, e := io.WriteString(shown, res.Value+"\n")
		err = errors.Join(err, e, shown.Close())
	}
	a.remarks(res, "session new --output-bytes keeps more")
	return err
}

// remarks prints on stderr what the streams and the exit code of a step or a command do not show. more tells how
// to keep all of its output.
func (a *app) remarks(res *unitask.Result, more string) {
	if res.Error != "" {
		a.ui.note("%s", safe(res.Error))
	}
	a.dropped(res, more)
	a.notTaken(res)
	a.ui.hints(res)
}

// dropped prints that not all of the output was kept.
func (a *app) dropped(res *unitask.Result, more string) {
	if res.Truncated {
		a.ui.note("output beyond %s a stream was dropped; %s", mebibytes(res.Policy.Effective.OutputBytes), more)
	}
}
