package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/audit/webhook"
)

// eventsPeriod is the interval at which the log is checked for new lines.
const eventsPeriod = 500 * time.Millisecond

func (a *app) eventsCommand() *cobra.Command {
	var follow, deliver bool
	var after int64
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print what is in the audit log as CloudEvents, and what is added to it",
		Long: `Events prints a line of JSON for each entry of the audit log: an event of CloudEvents
1.0, whose id is the entry's line. With --follow it goes on with those that are added,
until it is interrupted; --after N begins behind line N, where another has ended.

With --deliver it prints nothing, and sends what is added to the webhooks that the
home's config.toml names, until it is interrupted; how far each is stays in the home.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if deliver {
				return a.deliver(cmd, follow || after != 0)
			}
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
	cmd.Flags().BoolVar(&follow, "follow", false, "continue with entries that are added")
	cmd.Flags().BoolVar(&deliver, "deliver", false, "send what is added to the home's webhooks")
	cmd.Flags().Int64Var(&after, "after", 0, "begin behind this line")
	return cmd
}

// deliver sends new log entries to the home's webhooks.
func (a *app) deliver(cmd *cobra.Command, more bool) error {
	if more {
		return usage(errors.New("--deliver continues where it was: leave --follow and --after away"))
	}
	home, err := a.homeFolder()
	if err != nil {
		return err
	}
	hooks, err := unitask.Webhooks(home)
	if err != nil {
		return usage(err)
	}
	if len(hooks) == 0 {
		return usage(fmt.Errorf("%s names no webhook: give it a table [[webhook]] with url and secret",
			filepath.Join(home, unitask.ConfigFile)))
	}
	return webhook.Deliver(cmd.Context(), home, hooks, func(what string) { a.ui.note("%s", safe(what)) })
}

// printEvents prints the new events.
func (a *app) printEvents(events *audit.Events, after int64) error {
	return events.Next(after, func(event []byte) error {
		_, err := a.std.Stdout.Write(append(visibleJSON(event), '\n'))
		return err
	})
}
