package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
)

func (a *app) sessionExtend() *cobra.Command {
	return &cobra.Command{
		Use: "extend SESSION DURATION", Short: "Have a session live for so long from now on",
		Long: `Extend has a session end DURATION from now, sooner or later than it would have, and prints
when. From its beginning on it lives no longer than a new one might.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			life, err := parseDuration("DURATION", args[1])
			if err != nil {
				return usage(err)
			}
			answer, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpExtend, Session: args[0],
				LifeMS: policy.Millis(life)}, sessiond.Streams{})
			if err != nil {
				return err
			}
			return a.report(answer.Sessions, func() {
				for _, s := range answer.Sessions {
					a.ui.line("%s", s.ExpiresAt.Format(time.RFC3339))
				}
			})
		},
	}
}
