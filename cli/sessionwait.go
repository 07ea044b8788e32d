package cli

import (
	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/sessiond"
)

func (a *app) sessionWait() *cobra.Command {
	var f runFlags
	var stop bool
	cmd := &cobra.Command{
		Use:   "wait RUN",
		Short: "Wait for a command that session exec --detach left in the background",
		Long: `Wait prints what the command has printed, of which the last 64 KiB are kept, and what
it prints, until it ends; the exit code is the command's. When wait is interrupted, the
command goes on. --stop interrupts the command, and kills it after two seconds.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if stop {
				if _, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpStop, Run: args[0]},
					sessiond.Streams{}); err != nil {
					return asFlags(cmd, err)
				}
			}
			return asFlags(cmd, a.stepWith(cmd.Context(), sessiond.Request{Op: sessiond.OpWait, Run: args[0]}, f, unitask.IO{}))
		},
	}
	cmd.Flags().BoolVar(&stop, "stop", false, "end it")
	resultFlag(cmd.Flags(), &f.json)
	cmd.Flags().BoolVar(&f.raw, "raw", false, "pass what comes back to a terminal unchanged")
	return cmd
}
