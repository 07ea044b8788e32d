package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/changes"
	"github.com/unitask/unitask/internal/codexexec"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/internal/realpath"
)

// proposeTime bounds the time in which the changes of a project leave the machine of a client that has gone.
const proposeTime = 2 * time.Minute

func (a *app) codexExecCommand() *cobra.Command {
	var f runFlags
	var life time.Duration
	var behind bool
	cmd := &cobra.Command{
		Use:   "codex-exec [flags]",
		Short: "Run the commands of Codex in a machine: its exec-server protocol on stdin and stdout",
		Long: `Codex-exec gives Codex a fresh machine, under the policy of a run, for its commands and
files; Codex itself stays on the host. Codex starts it: environments.toml in its home names
it by program. The machine ends with the connection. With --project it has the project's
files. What changed is then a proposal: unitask apply lists proposals, and applies one.`,
		Example: `  unitask codex-exec --project
  unitask codex-exec --project --image node --allow-net api.example.com`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.readsFolder(); err != nil {
				return err
			}
			if !behind {
				return a.behind(cmd.Context(), nil)
			}
			return a.codexExec(cmd, f, life)
		},
	}
	f.machineFlags(cmd, &life)
	f.projectFlags(cmd)
	behindFlag(cmd, &behind)
	return cmd
}

// behindFlag is the hidden flag of the process that behind starts.
func behindFlag(cmd *cobra.Command, behind *bool) {
	cmd.Flags().BoolVar(behind, "behind", false, "serve in this process, until descriptor 3 is closed")
	_ = cmd.Flags().MarkHidden("behind")
}

// endsWithStarter calls stop when the process that has started this one, in behind, has ended.
func endsWithStarter(stop func()) {
	_, _ = os.NewFile(3, "held").Read(make([]byte, 1))
	stop()
}

// behind serves in a process of another process group. Codex kills its own child's two seconds after a connection,
// before the changes have left the machine, and Jupyter does after five. The process ends if this one does.
// It gets the interrupts that come.
func (a *app) behind(ctx context.Context, interrupts <-chan struct{}) error {
	ended, held, err := os.Pipe()
	if err != nil {
		return err
	}
	defer held.Close()
	defer ended.Close()
	cmd, err := detached(append([]string{"--behind=true"}, os.Args[1:]...)...) // in front, as -- may be the last
	if err != nil {
		return err
	}
	cmd.Dir, cmd.ExtraFiles = "", []*os.File{ended}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.std.Stdin, a.std.Stdout, a.std.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for running := true; running; {
		select {
		case err = <-done:
			running = false
		case <-interrupts:
			_ = cmd.Process.Signal(os.Interrupt)
		case <-ctx.Done():
			a.code = unitask.ExitCancelled
			return nil
		}
	}
	if code := cmd.ProcessState.ExitCode(); code > 0 { // it has said why
		a.code = code
		return nil
	}
	return err
}

func (a *app) codexExec(cmd *cobra.Command, f runFlags, life time.Duration) error {
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	go endsWithStarter(stop)
	brought, err := f.projectOf(a, cmd, "")
	if err != nil {
		return err
	}
	opts := codexexec.Options{Host: brought.Host, Guest: brought.Guest, Shell: "/bin/sh"}
	if opts.Host != "" {
		if opts.RealHost, err = realpath.Of(opts.Host); err != nil {
			return usage(fmt.Errorf("--project: %w", err))
		}
	}
	if opts.Guest == "" {
		opts.Guest = contract.WorkDir
	}
	if image := cmd.Flags().Lookup("image").Value.String(); image == "" || image == "shell" {
		opts.Shell = "/bin/bash"
	}
	end := func() {}
	opts.Start = func(ctx context.Context) (*unitask.Session, error) {
		s, closes, err := a.ownSession(ctx, cmd, f, "shell", "", life)
		if err == nil {
			end = closes
		}
		return s, err // the client learns of an error with its next call, the user at the end
	}
	s, err := codexexec.Serve(ctx, opts, a.std.Stdin, a.std.Stdout)
	defer func() { end() }()
	if s == nil || brought.Host == "" {
		return err
	}
	later, cancel := context.WithTimeout(context.WithoutCancel(ctx), proposeTime)
	defer cancel()
	return errors.Join(err, a.proposeChanges(later, s, "codex"))
}

// proposeChanges makes a proposal of what a session changed in its project.
func (a *app) proposeChanges(ctx context.Context, s *unitask.Session, agent string) error {
	home, err := a.homeFolder()
	if err != nil {
		return err
	}
	kept, err := os.CreateTemp("", "unitask-changes-")
	if err != nil {
		return err
	}
	_ = os.Remove(kept.Name())
	defer kept.Close()
	from, to := io.Pipe()
	go func() { to.CloseWithError(s.Changes(ctx, nil, true, to)) }()
	report, err := project.Read(from, kept)
	from.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	if err != nil {
		return err
	}
	manifest, err := project.Open(filepath.Join(layout.Dir(home).Runs(), s.ID))
	if err != nil {
		return err
	}
	return a.proposeReport(report, manifest, agent)
}

// proposeReport proposes the changes that an agent's session made in its project.
func (a *app) proposeReport(report *project.Report, manifest *project.Manifest, agent string) error {
	home, err := a.homeFolder()
	if err != nil {
		return err
	}
	p, err := report.Propose(manifest, nil)
	if err != nil {
		return err
	}
	store := changes.Open(home, &audit.Journal{Log: audit.In(home)})
	set, left, err := store.Propose(report.Host, "session "+report.Session, agent, p.Files)
	a.noteLeft(append(p.Left, left...), applyFlags{})
	if errors.Is(err, changes.ErrNothing) {
		return nil
	}
	if err == nil {
		a.ui.note("the project's changes are a proposal: unitask apply %s --dry-run shows them", set.ID)
	}
	return err
}
