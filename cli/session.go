package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/userdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

func (a *app) sessionCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "session",
		Short: "Keep a machine for several steps: variables, files and processes stay",
		Long: `Session keeps machines between command lines. They are held by a background
process of your own, which the first session starts and which ends behind the last one.
SESSION is the id that session new prints, or the name that it was given.`,
	}, a.sessionNew(), a.sessionList(), a.sessionRun(), a.sessionExec(), a.sessionCopy(), a.sessionPut(), a.sessionGet(), a.sessionForward(), a.sessionPause(), a.sessionResume(), a.sessionExtend(),
		a.sessionWait(), a.sessionFork(), a.sessionRemove(), a.sessionServe())
	for _, verb := range cmd.Commands() {
		switch verb.Name() {
		case "wait", "forward", "serve": // are of this host
		default:
			a.sessionFleet.add(verb)
		}
	}
	return cmd
}

// asked sends a request to the holder, which is started if it is needed.
func (a *app) asked(ctx context.Context, req sessiond.Request, streams sessiond.Streams) (sessiond.Answer, error) {
	answer, err := a.do(ctx, req, streams)
	var told *sessiond.Error
	switch {
	case errors.Is(err, context.Canceled) || errors.As(err, &told) && told.Code == sessiond.CodeCancelled:
		a.code = unitask.ExitCancelled
	case errors.As(err, &told) && told.Code == sessiond.CodeGone:
		err = hint(err, "unitask session ls lists those that live")
	case errors.As(err, &told) && told.RetryAfterMS > 0:
		err = hint(err, fmt.Sprintf("try again in %s, or end a session: unitask session rm", time.Duration(told.RetryAfterMS)*time.Millisecond))
	}
	return answer, err
}

// do has the fleet that --fleet names do it, or this host's holder.
func (a *app) do(ctx context.Context, req sessiond.Request, streams sessiond.Streams) (sessiond.Answer, error) {
	client, err := a.sessionFleet.open(a)
	if err != nil {
		return sessiond.Answer{}, err
	}
	if client != nil {
		defer client.Close()
		answer, err := client.Do(ctx, req, streams)
		if err != nil {
			err = sessiond.WireError(err)
		}
		return answer, err
	}
	home, err := a.homeFolder()
	if err != nil {
		return sessiond.Answer{}, err
	}
	return sessiond.Do(ctx, home, req, streams, func() (<-chan struct{}, error) { return a.startHolder(home) })
}

// startHolder starts `session serve` as a process of its own, which outlives us.
func (a *app) startHolder(home string) (<-chan struct{}, error) {
	name := filepath.Join(layout.Dir(home).Sessions(), "holder.log")
	log, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd, err := detached(append(a.passOn(home), "session", "serve")...)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return ended, nil
}

func (a *app) sessionServe() *cobra.Command {
	var idle time.Duration
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Hold sessions in the foreground; session new starts one in the background",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if idle <= 0 {
				return usage(fmt.Errorf("--idle %s: must be more than 0", idle))
			}
			rt, err := a.openWith(unitask.Options{Machines: unitask.Templates()})
			if err != nil {
				return err
			}
			defer rt.Close()
			return sessiond.Serve(cmd.Context(), rt.Images().Home(), rt, idle)
		},
	}
	cmd.Flags().DurationVar(&idle, "idle", 10*time.Second, "end when there has been no session for so long")
	return cmd
}

// given returns a flag of the machine that was given, "" if none was.
func (f *runFlags) given(cmd *cobra.Command) (name string) {
	cmd.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Name != "session" && flag.Name != "raw" {
			name = flag.Name
		}
	})
	return name
}

func (a *app) sessionNew() *cobra.Command {
	var f runFlags
	var life, idle time.Duration
	var name, lang string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "new [flags]",
		Short: "Start a session, and print its id",
		Long: `New starts a machine that stays, under the policy of a run, and prints the session's
id. The machine has its files, folders, network and secrets from its beginning.`,
		Example: `  unitask session new --name build --lang python --dir ./data
  unitask session run build --code 'x = 40'
  unitask session run build --code 'x + 2'
  unitask session rm build`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := f.machine(a, cmd, "")
			if err != nil {
				return err
			}
			req.Language = lang
			if err := mountsHere(&req); err != nil { // the holder stands elsewhere
				return err
			}
			held, err := a.foundCeiling(f.policy)
			if err != nil {
				return err
			}
			asked := &sessiond.New{Name: name, Request: req, Secrets: req.Secrets, LifeMS: policy.Millis(life), IdleMS: policy.Millis(idle)}
			asked.Ceiling, asked.Held = held.Origin, held.Ceiling
			answer, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpNew, New: asked}, sessiond.Streams{})
			if err != nil {
				return asFlags(cmd, err)
			}
			for _, s := range answer.Sessions {
				for _, d := range s.Denials {
					a.ui.note("denied: %s", safe(d.String()))
				}
				if asJSON {
					return a.ui.json(s)
				}
				fmt.Fprintln(a.std.Stdout, s.ID)
			}
			return nil
		},
	}
	f.machineFlags(cmd, &life)
	fl := cmd.Flags()
	fl.DurationVar(&idle, "idle", 0, "pause it when it has done nothing for so long (default 10m, or the ceiling's)")
	fl.StringVar(&name, "name", "", "a name for it: lower-case letters, digits and dashes")
	fl.StringVar(&lang, "lang", "", "language of its steps: "+strings.Join(language.Names(), ", ")+" (default the image's)")
	fl.BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

func (a *app) sessionList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List your sessions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
			if err != nil && !errors.Is(err, sessiond.ErrNone) {
				return err
			}
			if asJSON {
				list := answer.Sessions
				if list == nil {
					list = []sessiond.View{}
				}
				return a.ui.json(list)
			}
			var rows [][]string
			for _, s := range answer.Sessions {
				if s.CeilingChanged {
					s.State += ", ceiling changed"
				}
				rows = append(rows, []string{s.ID, s.Name, s.State, s.Image, s.ExpiresAt.Local().Format(time.DateTime), s.Parent})
			}
			a.ui.table("SESSION|NAME|STATE|IMAGE|ENDS|PARENT", rows)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a list of objects")
	return cmd
}

func (a *app) sessionPause() *cobra.Command {
	return &cobra.Command{
		Use: "pause SESSION", Short: "Keep a session's machine on the disk, and free its memory", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpPause, Session: args[0]}, sessiond.Streams{})
			return err
		},
	}
}

func (a *app) sessionResume() *cobra.Command {
	var secrets []string
	cmd := &cobra.Command{
		Use: "resume SESSION", Short: "Have a paused session's machine go on; any use does",
		Long: `Resume has a paused session's machine go on, as any use does. One whose process has ended
needs the values of its secrets again, which are not kept on the disk.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			values, _, err := a.readSecrets(cmd.Context(), secrets)
			if err != nil {
				return usage(err)
			}
			_, err = a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpResume, Session: args[0], Secrets: values}, sessiond.Streams{})
			return err
		},
	}
	cmd.Flags().StringArrayVar(&secrets, "secret", nil, "NAME[=SOURCE], a secret that it needs again, as session new has it; repeatable")
	return cmd
}

func (a *app) sessionRemove() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "rm SESSION... | --all",
		Short: "End sessions, and forget those that were lost",
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage(errors.New("name sessions, or give --all"))
			}
			if all {
				answer, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
				if err != nil && !errors.Is(err, sessiond.ErrNone) {
					return err
				}
				for _, s := range answer.Sessions {
					args = append(args, s.ID)
				}
			}
			var errs []error
			for _, name := range args {
				_, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpEnd, Session: name}, sessiond.Streams{})
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all of yours")
	return cmd
}

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
	fl.StringVar(&f.out, "out", "", "copy what it leaves in /out into this folder; what exists there stays, as do names that begin with a dot and, unless the folder is empty, files that tools run")
	fl.BoolVar(&f.outReplace, "out-replace", false, "have --out replace files that exist")
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

// execIn runs a command in a session that lives.
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

// stepWith runs a step or a command and prints what comes of it.
func (a *app) stepWith(ctx context.Context, req sessiond.Request, f runFlags, with unitask.IO) error {
	if f.out != "" && a.sessionFleet.url != "" {
		return usage(errors.New("--out does not go with --fleet: have the files written below /work, and fetch them with session cp"))
	}
	if err := f.outFolder(); err != nil {
		return err
	}
	var out *record.OutFolder
	if f.out != "" {
		var err error
		if out, err = record.OpenOut(f.out, f.outReplace); err != nil {
			return usage(fmt.Errorf("--out: %w", err))
		}
		defer out.Close()
	}
	stdout, stderr := output(a.std.Stdout, f), output(a.std.Stderr, f)
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
	a.code = unitask.ExitCode(res, err)
	if f.json {
		res.Stdout, res.Stderr = []byte(outs.String()), []byte(errs.String())
		if err != nil {
			res.Error = strings.TrimPrefix(res.Error+"; "+err.Error(), "; ")
		}
		return a.ui.json(json.RawMessage(must(json.Marshal(res))))
	}
	if res.Value != "" {
		shown := output(a.std.Stdout, f)
		_, e := io.WriteString(shown, res.Value+"\n")
		err = errors.Join(err, e, shown.Close())
	}
	a.remarks(res, "session new --output-bytes keeps more")
	return err
}

// remarks says on stderr what the streams and the exit code of a step or a command alone would not. more says what
// would keep all of its output.
func (a *app) remarks(res *unitask.Result, more string) {
	if res.Error != "" {
		a.ui.note("%s", safe(res.Error))
	}
	a.dropped(res, more)
	a.notTaken(res)
	if res.Hint != "" {
		a.ui.hint(res.Hint)
	}
}

// dropped says that not all of the output was kept.
func (a *app) dropped(res *unitask.Result, more string) {
	if res.Truncated {
		a.ui.note("output beyond %d bytes a stream was dropped; %s", res.Policy.Effective.OutputBytes, more)
	}
}

func must(text []byte, err error) []byte {
	if err != nil {
		panic(err) // of our own types
	}
	return text
}

// mountsHere has the mounts of a session's request be those of this working folder.
func mountsHere(req *unitask.Request) error {
	dir, err := userdir.Working()
	if err != nil {
		return usage(err)
	}
	for _, mounts := range [][]unitask.Mount{req.Files, req.Dirs} {
		for i := range mounts {
			mounts[i] = unitask.SessionMount(mounts[i], dir)
		}
	}
	return nil
}
