package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/sessiond"
)

func (a *app) policySet() *cobra.Command {
	var change unitask.PolicyChange
	cmd := &cobra.Command{
		Use:   "set RUN|SESSION --allow-net HOST --deny-net HOST",
		Short: "Change what a run or session that is under way may connect to",
		Long: `Set narrows and widens the network of your run or session while it is under way, within
the ceiling that it began under. It holds when the command returns: connections to what is
denied are reset, and answers about it (run --ask) are forgotten. A host that is denied is so
on every port, or on the one that is named, whatever allows it; --allow-net with the same text takes
that back. The run's record and the audit log have each change.`,
		Args: cobra.ExactArgs(1),
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			if len(change.AllowNet)+len(change.DenyNet) == 0 {
				return usage(errors.New("nothing would change: give --allow-net or --deny-net"))
			}
			err := rt.Approvals().SetPolicy(cmd.Context(), "", a.sessionID(cmd.Context(), args[0]), change)
			if err != nil {
				return hint(usage(err), "unitask runs ls and unitask session ls show yours")
			}
			return nil
		}),
	}
	cmd.Flags().StringArrayVar(&change.AllowNet, "allow-net", nil, "allow HTTP and TLS to HOST[:PORT]; repeatable")
	cmd.Flags().StringArrayVar(&change.DenyNet, "deny-net", nil, "deny every connection to HOST[:PORT]; repeatable")
	return cmd
}

// sessionID returns the id of the user's session of that name, or else the text itself.
func (a *app) sessionID(ctx context.Context, name string) string {
	answer, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
	if err != nil {
		return name
	}
	for _, s := range answer.Sessions {
		if s.Name == name {
			return s.ID
		}
	}
	return name
}
