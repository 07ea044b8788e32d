package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/audit"
)

// eventsPeriod is how often the log is looked at for new lines.
const eventsPeriod = 500 * time.Millisecond

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var after int64
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print what is in the audit log as CloudEvents, and what is added to it",
		Long: `Events prints a line of JSON for each entry of the audit log: an event of CloudEvents
1.0, whose id is the entry's line. With --follow it goes on with those that are added,
until it is interrupted; --after N begins behind line N, where another has ended.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := a.auditLog()
			if err != nil {
				return err
			}
			if after < 0 {
				return usage(fmt.Errorf("--after %d: must be 0 or more", after))
			}
			events := log.Events()
			err = a.printEvents(events, after)
			for err == nil && follow {
				select {
				case <-time.After(eventsPeriod):
					err = a.printEvents(events, after)
				case <-cmd.Context().Done():
					return nil
				}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with what is added")
	cmd.Flags().Int64Var(&after, "after", 0, "begin behind this line")
	return cmd
}

// printEvents prints the events that are new.
func (a *app) printEvents(events *audit.Events, after int64) error {
	return events.Next(after, func(event []byte) error {
		_, err := a.std.Stdout.Write(append(visibleJSON(event), '\n'))
		return err
	})
}
