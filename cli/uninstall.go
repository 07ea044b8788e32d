package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/disuse"
	"github.com/unitask/unitask/internal/history"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/realpath"
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
		d.Runs(), d.Sessions(), d.SigningKey(), d.Skills(), d.Tools(), d.Webhooks(),
		filepath.Join(string(d), policy.TrustFile), filepath.Join(string(d), policy.ApprovedFile)}
}

func (a *app) uninstallCommand() *cobra.Command {
	var yes, all bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "List what unitask has put on this host, and remove it",
		Long: `List what unitask has put on this host, with its size. --yes removes the program and what can be
made again: parts, images, templates, packages, caches. --all also removes what is yours: records,
the audit log, paused sessions, keys and the configuration. What is not unitask's stays, and so do
links and the lines that mcp config has written for clients. A home that is not called .unitask
must have nothing that is not unitask's.

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
			list, err := entriesOf(home)
			if err != nil {
				return err
			}
			if yes {
				if err := onlyOurs(home, list); err != nil {
					return err
				}
				if err := a.idle(cmd.Context(), home); err != nil {
					return err
				}
			}
			list = append(list, a.programs(cmd.Context())...)
			if yes {
				err = removeListed(home, list, all)
			}
			a.done = list
			return errors.Join(err, a.report(list, func() { a.printInstalled(list, yes) }))
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "remove the program and what can be made again")
	cmd.Flags().BoolVar(&all, "all", false, "with --yes: also records, the audit log, sessions, keys and configuration")
	return cmd
}

// onlyOurs refuses a folder that may not be a home: a mistyped UNITASK_HOME could name somebody's vendor and tools.
func onlyOurs(home string, list []installed) error {
	if real, err := realpath.Of(home); err == nil && filepath.Base(real) == ".unitask" {
		return nil
	}
	for _, one := range list {
		if one.Class == foreign {
			return hint(usage(fmt.Errorf("%s has %s, which is not unitask's: nothing is removed", safe(home),
				safe(filepath.Base(one.Path)))), "name the right folder by UNITASK_HOME, or move that file elsewhere first")
		}
	}
	return nil
}

// removeListed removes the files that unitask can make again, or all of unitask's files, and then the home if it is
// empty. The programs come last, so they are there to go on if the removal is interrupted.
func removeListed(home string, list []installed, all bool) error {
	var failed []error
	for i := range list {
		one := &list[i]
		if one.Removal == "" && (one.Class == rebuilt || all && one.Class == yours) {
			err := os.RemoveAll(one.Path)
			one.Removed = err == nil
			failed = append(failed, err)
		}
	}
	if real, err := realpath.Of(home); err == nil && os.Remove(real) == nil { // it stays if something is in it
		_ = os.Remove(home) // a link
	}
	return errors.Join(failed...)
}

// idle makes sure that nothing runs in the home.
func (a *app) idle(ctx context.Context, home string) error {
	if _, err := os.Stat(home); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := unitask.PoolDaemonStatus(home); !errors.Is(err, unitask.ErrNoPool) {
		return hint(usage(errors.New("a pool is up")), "unitask pool down ends it")
	}
	return a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
		running, _, err := rt.History().Page(history.Filter{Status: string(record.Running), Looked: maxCounted})
		if err != nil {
			return err
		}
		var answer sessiond.Answer
		if _, err := os.Stat(layout.Dir(home).Sessions()); err == nil { // the question would make the folder
			answer, err = a.asked(ctx, sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
			if err != nil && !errors.Is(err, sessiond.ErrNone) {
				return err
			}
		}
		live := len(running)
		for _, s := range answer.Sessions {
			if s.State == sessiond.Running {
				live++
			}
		}
		if live > 0 {
			return hint(usage(fmt.Errorf("%s under way", count(live, "run or session"))),
				"unitask stats shows them; wait, or end them by unitask session rm")
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
	old := installed{Path: selfupdate.Previous(program), Class: rebuilt}
	if st, err := os.Lstat(old.Path); err != nil || !st.Mode().IsRegular() {
		return []installed{self}
	}
	old.Bytes = disuse.Size(old.Path)
	return []installed{old, self}
}

// entriesOf lists a home.
func entriesOf(home string) (list []installed, err error) {
	dir := layout.Dir(home)
	entries, err := os.ReadDir(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		one := installed{Path: filepath.Join(home, e.Name()), Class: foreign}
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			one.Class = linked
		case slices.Contains(rebuiltIn(dir), one.Path):
			one.Class = rebuilt
		case slices.Contains(yoursIn(dir), one.Path):
			one.Class = yours
		}
		one.Bytes = disuse.Size(one.Path)
		list = append(list, one)
	}
	return list, err
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
