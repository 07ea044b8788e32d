package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/internal/selfupdate"
)

func (a *app) selfCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "self",
		Short: "Update this program, or take an update back",
	}, a.selfUpdate(), a.selfRollback())
}

// newest is what self update prints.
type newest struct {
	Version string `json:"version"`
	Newest  string `json:"newest"`
	Newer   bool   `json:"newer"`
	Updated bool   `json:"updated"`
	Kept    string `json:"kept,omitempty"` // the program as it was
}

func (a *app) selfUpdate() *cobra.Command {
	var check bool
	var release string
	cmd := &cobra.Command{
		Use:   "update",
		Short: "Replace this program by the newest release",
		Long: `Take the newest release, check that its publisher signed it, and put its program in the place of
this one. This program has the publisher's key. It takes no older release. The program as it was
stays beside the new one, for unitask self rollback. Sessions and servers that run now go on with
the old program until they end.

A program that a package manager has installed is not touched: the error names the command.`,
		Example: `  unitask self update --check
  unitask self update --release /media/usb/unitask-1.3.0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			publisher, err := selfupdate.Built()
			if err != nil {
				return err
			}
			program, err := unowned(cmd.Context(), "updates", func(m selfupdate.Manager) string { return m.Update })
			if err != nil && !check {
				return err
			}
			if release != "" {
				publisher.From = release
			}
			found, err := publisher.Newest(cmd.Context())
			if err != nil {
				return err
			}
			n := newest{Version: version(), Newest: found.Version}
			if n.Newer, err = found.Newer(n.Version); err != nil {
				return err
			}
			if n.Newer && !check {
				if err := a.install(cmd.Context(), found, program); err != nil {
					return err
				}
				n.Updated, n.Kept = true, selfupdate.Previous(program)
			}
			return a.report(n, func() { a.printNewest(n) })
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "only say whether there is a newer release")
	cmd.Flags().StringVar(&release, "release", "", "take it from this folder or address (default: the publisher's)")
	return cmd
}

// unowned returns the path of this program. It is an error if a package manager owns it.
func unowned(ctx context.Context, does string, command func(selfupdate.Manager) string) (string, error) {
	program, err := selfupdate.Program()
	if err != nil {
		return "", err
	}
	if m, owned := selfupdate.Owner(ctx, program); owned {
		return "", hint(fmt.Errorf("%s has installed %s, and %s it", m.Name, program, does), command(m))
	}
	return program, nil
}

func (a *app) install(ctx context.Context, found *selfupdate.Release, program string) error {
	a.ui.doing("fetching unitask " + found.Version)
	defer a.ui.clear()
	var have int64
	return found.Install(ctx, program, func(n int64) {
		have += n
		a.ui.progress.have(have, 0)
	})
}

func (a *app) printNewest(n newest) {
	switch {
	case n.Updated:
		a.ui.line("updated from %s to %s; unitask self rollback takes it back", n.Version, n.Newest)
	case n.Newer:
		a.ui.line("%s is there, and this is %s: unitask self update takes it", n.Newest, n.Version)
	default:
		a.ui.line("%s is the newest release", n.Version)
	}
}

func (a *app) selfRollback() *cobra.Command {
	return &cobra.Command{
		Use:   "rollback",
		Short: "Return to the program before the last update",
		Long: `Return to the program before the last update. The program that was in its place is kept, so a
second rollback takes the first one back.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			program, err := selfupdate.Program()
			if err != nil {
				return err
			}
			now, err := selfupdate.Rollback(cmd.Context(), program)
			if err != nil {
				return err
			}
			return a.report(map[string]string{"version": now, "before": version()}, func() {
				a.ui.line("this is %s again; it was %s", now, version())
			})
		},
	}
}
