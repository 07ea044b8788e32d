package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/disuse"
	"github.com/unitask/unitask/internal/history"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/selfupdate"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Classes of what uninstall finds.
const (
	rebuilt = "can be made again"
	yours   = "yours"
	linked  = "a link" // it stays, and so does what it points to
	foreign = "not unitask's"
)

// installed is one thing that unitask has put on this host.
type installed struct {
	Path    string `json:"path"`
	Class   string `json:"class"`
	Bytes   int64  `json:"bytes"`
	Removal string `json:"removal,omitempty"` // the command that removes it, if uninstall does not
	Removed bool   `json:"removed"`
}

// rebuiltIn and yoursIn list the entries of a home.
func rebuiltIn(d layout.Dir) []string {
	return []string{d.Cache(), d.Compiled(), d.Containers(), d.Custom(), d.Fleet(), d.Idempotency(), d.Images(),
		d.Layers(), d.Lock(""), d.Packages(), d.PoolLock(), d.PoolLog(), d.PoolSocket(), d.Templates(), d.Vendor(""),
		filepath.Join(string(d), policy.TrustFile+".lock"), filepath.Join(string(d), policy.ApprovedFile+".lock")}
}

func yoursIn(d layout.Dir) []string {
	return []string{d.Audit(), d.Changes(), d.Config(), d.DebugHistory(), d.ImageFiles(), d.PauseKey(), d.ReplHistory(),
		d.Runs(), d.Sessions(), d.SigningKey(), d.Tools(), d.Webhooks(), filepath.Join(string(d), policy.TrustFile),
		filepath.Join(string(d), policy.ApprovedFile)}
}

func (a *app) uninstallCommand() *cobra.Command {
	var yes, all bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "List what unitask has put on this host, and remove it",
		Long: `List what unitask has put on this host, with its size. --yes removes the program and what can be
made again: parts, images, templates, packages, caches. --all also removes what is yours: records,
the audit log, paused sessions, keys and the configuration. What is not unitask's stays, and so do
the lines that mcp config has written for clients.

A program that a package manager has installed stays: the list has its command.`,
		Example: `  unitask uninstall
  unitask uninstall --yes --all`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all && !yes {
				return usage(errors.New("--all needs --yes: without it, uninstall only lists"))
			}
			home, err := a.homeFolder()
			if err != nil {
				return err
			}
			if yes {
				if err := a.idle(cmd.Context()); err != nil {
					return err
				}
			}
			list := append(a.programs(cmd.Context()), entriesOf(home)...)
			var failed []error
			for i := range list {
				one := &list[i]
				if yes && one.Removal == "" && (one.Class == rebuilt || all && one.Class == yours) {
					err := os.RemoveAll(one.Path)
					one.Removed = err == nil
					failed = append(failed, err)
				}
			}
			if yes {
				_ = os.Remove(home) // it stays if something is in it
			}
			a.done = list
			return errors.Join(append(failed, a.report(list, func() { a.printInstalled(list, yes) }))...)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "remove the program and what can be made again")
	cmd.Flags().BoolVar(&all, "all", false, "with --yes: also records, the audit log, sessions, keys and configuration")
	return cmd
}

// idle makes sure that nothing runs in the home.
func (a *app) idle(ctx context.Context) error {
	return a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
		running, _, err := rt.History().Page(history.Filter{Status: string(record.Running), Looked: maxCounted})
		if err != nil {
			return err
		}
		answer, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
		if err != nil && !errors.Is(err, sessiond.ErrNone) {
			return err
		}
		live := len(running)
		for _, s := range answer.Sessions {
			if s.State == sessiond.Running {
				live++
			}
		}
		if live > 0 {
			return hint(usage(fmt.Errorf("%s under way", count(live, "run or session"))),
				"unitask stats shows them; wait, or end them by unitask session rm and unitask pool down")
		}
		return nil
	})(&cobra.Command{}, nil)
}

// programs returns this program and the one that an update has replaced.
func (a *app) programs(ctx context.Context) []installed {
	program, err := selfupdate.Program()
	if err != nil {
		return nil
	}
	self := installed{Path: program, Class: rebuilt, Bytes: disuse.Size(program)}
	if m, owned := selfupdate.Owner(ctx, program); owned {
		self.Removal = m.Removal
		return []installed{self}
	}
	list := []installed{self}
	if old := selfupdate.Previous(program); disuse.Size(old) > 0 {
		list = append(list, installed{Path: old, Class: rebuilt, Bytes: disuse.Size(old)})
	}
	return list
}

// entriesOf lists a home.
func entriesOf(home string) (list []installed) {
	dir := layout.Dir(home)
	entries, _ := os.ReadDir(home) // without a home there is nothing
	for _, e := range entries {
		one := installed{Path: filepath.Join(home, e.Name()), Class: foreign}
		switch {
		case slices.Contains(rebuiltIn(dir), one.Path):
			one.Class = rebuilt
		case slices.Contains(yoursIn(dir), one.Path):
			one.Class = yours
		}
		one.Bytes = disuse.Size(one.Path)
		list = append(list, one)
	}
	return list
}

func (a *app) printInstalled(list []installed, yes bool) {
	var rows [][]string
	var bytes int64
	for _, one := range list {
		state := one.Class
		switch {
		case one.Removed:
			state = "removed"
			bytes += one.Bytes
		case one.Removal != "":
			state = one.Removal
		case yes:
			state += ": stays"
		}
		rows = append(rows, []string{one.Path, mebibytes(one.Bytes), state})
	}
	a.ui.table("WHAT|SIZE|STATE", rows)
	if yes {
		a.ui.line("removed: %s", mebibytes(bytes))
	}
}
