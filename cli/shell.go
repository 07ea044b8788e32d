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
)

// anyShell becomes the better shell of an image.
const anyShell = "command -v bash >/dev/null && exec bash; exec sh"

func (a *app) shellCommand() *cobra.Command {
	var f runFlags
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "shell [flags] [-- COMMAND ARG...]",
		Short: "Open a shell, or run a command, in a fresh machine",
		Long: `Shell opens a shell in a fresh machine, under the policy of a run, and ends the
machine with it. What stands after -- is run in its place. On a terminal it has
one of its own: colours, size, Ctrl-C; Ctrl-C twice in a row ends the machine.`,
		Example: `  unitask shell
  unitask shell --image python --allow-net pypi.org
  unitask shell -- ls -l /usr/bin`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.shell(cmd, args, f, life) },
	}
	f.policyFlags(cmd)
	fl := cmd.Flags()
	fl.StringArrayVar(&f.env, "env", nil, "NAME=VALUE for its environment; repeatable")
	fl.StringVar(&f.ca, "ca", "", "a PEM file of certificates to trust beside the usual ones")
	fl.DurationVar(&life, "life", 0, "how long the machine lives at most (default, and the most, 24h)")
	fl.BoolVar(&f.raw, "raw", false, "pass what comes back to a terminal unchanged; by default what a program's own terminal does not need is escaped")
	return cmd
}

func (a *app) shell(cmd *cobra.Command, args []string, f runFlags, life time.Duration) error {
	if n := cmd.ArgsLenAtDash(); len(args) > 0 && n != 0 {
		return hint(usage(fmt.Errorf("unexpected argument %q", args[0])), "a command follows --")
	}
	req, err := f.granted(cmd)
	if err != nil {
		return err
	}
	if req.Env, err = parseEnv(f.env); err != nil {
		return usage(err)
	}
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return usage(fmt.Errorf("--ca: %w", err))
		}
		req.CA = string(text)
	}
	if req.Image == "" {
		req.Image = "shell"
	}
	ceiling, err := findCeiling("", f.policy)
	if err != nil {
		return err
	}
	var rt *unitask.Runtime
	if rt, err = a.openWith(unitask.Options{Ceiling: ceiling, Machines: unitask.PoolDaemon(func(sh unitask.Shape) { a.warmLater(rt.Images().Home(), sh) })}); err != nil {
		return err
	}
	defer rt.Close()
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	s, err := rt.NewSessionFor(ctx, unitask.Caller{Via: unitask.ViaCLI, Ceiling: ceiling}, unitask.SessionRequest{Request: req, Life: life})
	if err != nil {
		return asFlags(cmd, err)
	}
	defer s.Close()
	for _, d := range s.Policy.Denials {
		a.ui.note("denied: %s", safe(d.String()))
	}
	f.tty, f.input = isTerminal(a.std.Stdout) && isTerminal(a.std.Stdin), true
	stdout, stderr := output(a.std.Stdout, f), output(a.std.Stderr, f)
	streams := unitask.IO{Stdout: stdout, Stderr: stderr}
	restore, err := a.interactive(f, &streams, stop)
	if err != nil {
		return err
	}
	command := unitask.Command{Args: slices.Clone(args), Stdin: streams.Stdin, Stdout: stdout, Stderr: stderr, Terminal: streams.Terminal}
	if len(args) == 0 {
		command.Args = []string{"/bin/sh", "-c", anyShell}
	}
	res, err := s.Exec(ctx, command)
	restore()
	err = errors.Join(err, stdout.Close(), stderr.Close())
	a.code = unitask.ExitCode(res, err)
	if res != nil && err == nil && res.Error != "" {
		a.ui.note("%s", safe(res.Error))
	}
	return err
}
