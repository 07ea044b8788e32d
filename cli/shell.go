package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/sessiond"
)

// anyShell starts the better shell of an image.
const anyShell = "command -v bash >/dev/null && exec bash; exec sh"

func (a *app) shellCommand() *cobra.Command {
	var f runFlags
	var life time.Duration
	var session string
	cmd := &cobra.Command{
		Use:   "shell [flags] [-- COMMAND ARG...]",
		Short: "Open a shell, or run a command, in a fresh machine",
		Long: `Shell opens a shell in a fresh machine, under the policy of a run, and ends the
machine with it. What stands after -- is run in its place. On a terminal it has
one of its own: colours, size, Ctrl-C; Ctrl-C twice in a row ends the machine, or
with --session the shell. It has no time limit but the machine's --life, unless --timeout
gives one.`,
		Example: `  unitask shell
  unitask shell --image python --allow-net pypi.org
  unitask shell -- ls -l /usr/bin`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.shell(cmd, args, f, life, session) },
	}
	f.machineFlags(cmd, &life)
	f.projectFlags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&session, "session", "",
		"the id or name of a session that lives (unitask session): the shell is one of its machine, which stays")
	fl.BoolVar(&f.raw, "raw", false,
		"pass what comes back to a terminal unchanged; by default what a program's own terminal does not need is escaped")
	return cmd
}

// machineFlags are the flags of a session's machine.
func (f *runFlags) machineFlags(cmd *cobra.Command, life *time.Duration) {
	f.policyFlags(cmd)
	fl := cmd.Flags()
	fl.StringArrayVar(&f.env, "env", nil, "NAME=VALUE for its environment; repeatable")
	fl.StringVar(&f.ca, "ca", "", "a PEM file of certificates to trust beside the usual ones")
	fl.DurationVar(life, "life", 0, "how long the machine lives at most (default, and the most, 24h)")
}

// machine returns the request for a session's machine.
func (f *runFlags) machine(a *app, cmd *cobra.Command, image string) (unitask.Request, error) {
	req, err := f.granted(a, cmd)
	if err != nil {
		return req, err
	}
	if req.Env, err = parseEnv(f.env); err != nil {
		return req, usage(err)
	}
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return req, usage(fmt.Errorf("--ca: %w", err))
		}
		req.CA = string(text)
	}
	if req.Image == "" {
		req.Image = image
	}
	return req, nil
}

func (a *app) shell(cmd *cobra.Command, args []string, f runFlags, life time.Duration, session string) error {
	if n := cmd.ArgsLenAtDash(); len(args) > 0 && n != 0 {
		return hint(usage(fmt.Errorf("unexpected argument %q", args[0])), "a command follows --")
	}
	command := slices.Clone(args)
	if len(args) == 0 {
		command = []string{"/bin/sh", "-c", anyShell}
	}
	if err := a.readsFolder(); err != nil {
		return err
	}
	f.tty, f.input = isTerminal(a.std.Stdout) && isTerminal(a.std.Stdin), true
	if session != "" {
		if other := f.given(cmd); other != "" {
			return usage(fmt.Errorf("--%s does not go with --session: its machine has been as it is since it began", other))
		}
		return a.execIn(cmd.Context(), session, sessiond.Command{Args: command, Endless: true}, f)
	}
	limited := cmd.Flags().Changed("timeout") // by a default of runs it is not
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	s, end, err := a.ownSession(ctx, cmd, f, "shell", "", life)
	if err != nil {
		return err
	}
	defer end()
	return a.onlyCommand(ctx, stop, s, command, f, limited)
}

// onlyCommand runs the one command of a session, with this terminal or these streams.
func (a *app) onlyCommand(ctx context.Context, stop context.CancelCauseFunc, s *unitask.Session, command []string,
	f runFlags, limited bool) error {
	out, err := f.openOut()
	if err != nil {
		return err
	}
	if out != nil {
		defer out.Close()
	}
	stdout, stderr := a.output(a.std.Stdout, f), a.output(a.std.Stderr, f)
	streams := unitask.IO{Stdout: stdout, Stderr: stderr}
	restore, err := a.interactive(f, &streams, stop)
	if err != nil {
		return err
	}
	run := unitask.Command{Args: command, Stdin: streams.Stdin, Stdout: stdout, Stderr: stderr, Terminal: streams.Terminal,
		Endless: true}
	if limited {
		run.Timeout = s.Policy.Effective.Timeout
	}
	res, err := s.Exec(ctx, run)
	restore()
	err = errors.Join(err, stdout.Close(), stderr.Close())
	if res != nil && err == nil {
		err = a.bringOut(res, out)
	}
	a.code = unitask.ExitCode(res, err)
	if res == nil || err != nil {
		return err
	}
	if res.TimedOut { // its machine then ends, not only the command
		res.Error = fmt.Sprintf("time limit of %g s reached; --timeout gives more", run.Timeout.Seconds())
	}
	a.remarks(res, "--output-bytes keeps more")
	return nil
}

// ownSession starts a session of this process, for the user; end ends it and closes its runtime.
func (a *app) ownSession(ctx context.Context, cmd *cobra.Command, f runFlags, image, lang string, life time.Duration) (
	s *unitask.Session, end func(), err error) {
	req, err := f.machine(a, cmd, image)
	if err == nil {
		req.Language = lang
		err = mountsHere(&req)
	}
	if err != nil {
		return nil, nil, err
	}
	return a.ownSessionOf(ctx, cmd, f, req, life)
}

// ownSessionOf is ownSession for a request.
func (a *app) ownSessionOf(ctx context.Context, cmd *cobra.Command, f runFlags, req unitask.Request,
	life time.Duration) (s *unitask.Session, end func(), err error) {
	project, err := f.projectOf(a, cmd, "")
	if err != nil {
		return nil, nil, err
	}
	held, err := a.foundCeiling(f.policy)
	if err != nil {
		return nil, nil, err
	}
	var rt *unitask.Runtime
	if rt, err = a.openWith(unitask.Options{Ceiling: held.Ceiling,
		Machines: unitask.PoolDaemon(func(sh unitask.MachineClass) { a.warmLater(rt.Images().Home(), sh) })}); err != nil {
		return nil, nil, err
	}
	s, err = rt.NewSessionFor(ctx, unitask.Caller{Via: unitask.ViaCLI, Ceiling: held.Ceiling, Origin: held.Origin},
		unitask.SessionRequest{Request: req, Life: life, Project: project})
	if err != nil {
		rt.Close()
		return nil, nil, asFlags(cmd, err)
	}
	for _, d := range s.Policy.Denials {
		a.ui.note("denied: %s", denial(d))
	}
	return s, func() { s.Close(); rt.Close() }, nil
}
