package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/telemetry"
	"github.com/unitask/unitask/policy"
)

// replaysSession reports that the id to replay is a session.
func (a *app) replaysSession(rt *unitask.Runtime, f runFlags) (id string, yes bool) {
	if f.replay == "" {
		return "", false
	}
	id, err := rt.Runs().Find(f.replay)
	if err != nil {
		return "", false
	}
	rec, err := rt.Runs().Get(id)
	return id, err == nil && rec.Session == id
}

// replaySession runs the steps of a recorded session in a new one, and then ends it. The exit code is that of the
// last step.
func (a *app) replaySession(cmd *cobra.Command, args []string, rt *unitask.Runtime, f runFlags, id string,
	ceiling *policy.Ceiling) error {
	var other error
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if !slices.Contains([]string{"replay", "owner", "policy", "accel", "verbose", "home", "raw"}, flag.Name) {
			other = fmt.Errorf("--%s does not go with the replay of a session", flag.Name)
		}
	})
	if len(args) > 0 {
		other = fmt.Errorf("unexpected argument %q: the records have the steps", args[0])
	}
	if other != nil {
		return usage(other)
	}
	req, steps, err := rt.History().Session(id, f.owner)
	if errors.Is(err, history.ErrOwner) {
		return hint(usage(err), "--owner NAME says that you mean it")
	}
	if err != nil {
		return usage(err)
	}
	if len(req.Tools) > 0 {
		return usage(fmt.Errorf("session %s had tools of %s: only runs answer their calls from the record", id,
			strings.Join(req.Tools, ", ")))
	}
	a.deniedThen(rt, id)
	if req.Secrets, req.SecretHosts, err = a.readSecrets(cmd.Context(), req.SecretNames()); err != nil {
		return usage(err)
	}
	ctx := telemetry.FromEnvironment(cmd.Context())
	s, err := rt.NewSessionFor(ctx, unitask.Caller{Via: unitask.ViaCLI, Ceiling: ceiling},
		unitask.SessionRequest{Request: req})
	if err != nil {
		return asFlags(cmd, err)
	}
	return errors.Join(a.play(ctx, s, steps, f), s.Close())
}

// play runs steps one after the other, and reports which of them end differently than before.
func (a *app) play(ctx context.Context, s *unitask.Session, steps []history.RecordedStep, f runFlags) error {
	for i, step := range steps {
		stdout, stderr := a.output(a.std.Stdout, f), a.output(a.std.Stderr, f)
		res, err := s.Replay(ctx, step, stdout, stderr)
		if err == nil && res.Value != "" {
			_, err = fmt.Fprintln(stdout, res.Value)
		}
		if err = errors.Join(err, stdout.Close(), stderr.Close()); err != nil {
			return fmt.Errorf("step %d of %d (%s): %w", i+1, len(steps), step.ID, err)
		}
		a.code = res.ExitCode
		a.remarks(res, "the limit is that of the record")
		switch then := step.Ended; {
		case step.Background:
			a.ui.note("step %d of %d: in the background, as run %s", i+1, len(steps), res.RunID)
		case then == nil:
			a.ui.note("step %d of %d: %s, code %d; then it did not come to its end", i+1, len(steps), res.Outcome, res.ExitCode)
		case then.Outcome != res.Outcome || then.ExitCode != res.ExitCode:
			a.ui.note("step %d of %d: %s, code %d; then %s, code %d", i+1, len(steps), res.Outcome, res.ExitCode, then.Outcome,
				then.ExitCode)
		}
	}
	return nil
}
