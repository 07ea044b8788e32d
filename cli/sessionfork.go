package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/sessiond"
)

func (a *app) sessionFork() *cobra.Command {
	var count int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fork [-n N] SESSION",
		Short: "Start sessions that continue from the state of one, and print their ids",
		Long: `Fork starts copies of a session's machine: variables, files and processes are there in
each, and nothing that one does shows in another. The session itself goes on, and ends
at the same time as they. A fork has no name; session ls shows its parent.`,
		Example: `  unitask session fork build
  for id in $(unitask session fork -n 3 build); do unitask session exec $id -- ls; done`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpFork, Session: args[0], Count: count},
				sessiond.Streams{})
			if err != nil {
				return asFlags(cmd, err)
			}
			if asJSON {
				return a.ui.json(answer.Sessions)
			}
			for _, s := range answer.Sessions {
				fmt.Fprintln(a.std.Stdout, s.ID)
			}
			return nil
		},
	}
	cmd.Flags().IntVarP(&count, "count", "n", 1, fmt.Sprintf("how many, %d at most", unitask.MaxForks))
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a list of objects")
	return cmd
}
