package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/internal/changes"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/userdir"
	"github.com/unitask/unitask/session"
)

// projectFlags are the flags of a session's project.
func (f *runFlags) projectFlags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.project, "project", "",
		"bring the project's folder, which the code may change in the machine: the git repository, or the folder of the "+
			"package.json, that you are in; --project=DIR names another")
	fl.Lookup("project").NoOptDefVal = codesProject
	fl.StringVar(&f.projectMode, "mode", "copy", "copy the project as run --project does, or clone its git repository, "+
		"with history, on a new branch")
}

// projectOf returns the project of a session's flags. name is the session's.
func (f *runFlags) projectOf(a *app, cmd *cobra.Command, name string) (p session.ProjectRequest, err error) {
	switch {
	case !cmd.Flags().Changed("project") && cmd.Flags().Changed("mode"):
		return p, usage(errors.New("--mode goes with --project"))
	case !cmd.Flags().Changed("project"):
		return p, nil
	case f.projectMode != "copy" && f.projectMode != "clone":
		return p, usage(fmt.Errorf("--mode %s: must be copy or clone", f.projectMode))
	case a.sessionFleet.url != "":
		return p, usage(errors.New("--project does not go with --fleet: the folder is on this host"))
	}
	home, err := a.homeFolder()
	if err != nil {
		return p, err
	}
	root, err := projectRoot(f.project, "", home)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return p, usage(err)
	}
	dir, err := userdir.Working()
	if err != nil {
		return p, usage(err)
	}
	p.Host, p.Guest = root, session.ProjectPlace(root, dir)
	if f.projectMode == "clone" {
		p.Branch = session.BranchPrefix + name
	}
	return p, nil
}

// reviewed is what a session changed in its project.
type reviewed struct {
	*project.Report
	brought *project.Manifest
	texts   *os.File
}

func (r *reviewed) close() { r.texts.Close() }

// review asks what a session changed.
func (a *app) review(ctx context.Context, session string, paths []string, texts bool) (*reviewed, error) {
	home, err := a.homeFolder()
	if err != nil {
		return nil, err
	}
	kept, err := os.CreateTemp("", "unitask-changes-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(kept.Name())
	r := &reviewed{texts: kept}
	from, to := io.Pipe()
	done := make(chan error, 1)
	go func() {
		var err error
		r.Report, err = project.Read(from, kept)
		from.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		done <- err
	}()
	_, err = a.asked(ctx, sessiond.Request{Op: sessiond.OpChanges, Session: session, Paths: paths, Texts: texts},
		sessiond.Streams{Stdout: to})
	to.CloseWithError(err)
	var told *sessiond.Error
	if errors.As(err, &told) && told.Code == sessiond.CodeUsage {
		err = usage(err)
	}
	if e := <-done; err == nil {
		err = e
	}
	if err == nil {
		r.brought, err = project.Open(filepath.Join(layout.Dir(home).Runs(), r.Session))
	}
	if err == nil && len(paths) > 0 && len(r.Changes) == 0 {
		err = usage(fmt.Errorf("the session changed nothing at %q: paths are relative to the project's folder", paths))
	}
	if err != nil {
		kept.Close()
		return nil, err
	}
	return r, nil
}

func (a *app) sessionDiff() *cobra.Command {
	var stat, names, asJSON bool
	cmd := &cobra.Command{
		Use:   "diff SESSION [PATH...]",
		Short: "Show what a session changed in its project",
		Long: `Diff compares the project in a session's machine with what session new --project brought: a
unified diff, with new, deleted and renamed files. PATH is a file or folder of the project. New
files that the project's .gitignore files name are left out.`,
		Example: `  unitask session diff build
  unitask session diff build --stat
  unitask session diff build src/main.py`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if stat && names || stat && asJSON || names && asJSON {
				return usage(errors.New("give one of --stat, --name-only and --json"))
			}
			r, err := a.review(cmd.Context(), args[0], args[1:], !names)
			if err != nil {
				return err
			}
			defer r.close()
			return a.showDiff(r, stat, names, asJSON)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&stat, "stat", false, "print the number of changed lines of each file")
	fl.BoolVar(&names, "name-only", false, "print the names of the files")
	fl.BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// shownChange is a change in JSON.
type shownChange struct {
	project.Change
	Status project.Status `json:"status"`
	Diff   string         `json:"diff,omitempty"`
}

func (a *app) showDiff(r *reviewed, stat, names, asJSON bool) error {
	if names {
		for _, c := range r.Changes {
			fmt.Fprintln(a.std.Stdout, safe(c.Path))
		}
		return nil
	}
	shown, err := r.Show(r.brought)
	if err != nil {
		return err
	}
	if asJSON {
		list := make([]shownChange, len(shown))
		for i, one := range shown {
			list[i] = shownChange{r.Changes[i], r.Changes[i].Status(), one.Text}
			list[i].Sent = false
		}
		return a.ui.json(struct {
			Session string        `json:"session"`
			Host    string        `json:"host"`
			Branch  string        `json:"branch,omitempty"`
			Ignored int           `json:"ignored"`
			Changes []shownChange `json:"changes"`
		}{r.Session, r.Host, r.Branch, r.Ignored, list})
	}
	added, removed := 0, 0
	for i, one := range shown {
		added, removed = added+one.Added, removed+one.Removed
		if !stat {
			if _, err := io.WriteString(a.std.Stdout, one.Text); err != nil {
				return err
			}
			continue
		}
		lines := fmt.Sprintf("+%d -%d", one.Added, one.Removed)
		if !one.Lines {
			lines = "not text"
		}
		fmt.Fprintf(a.std.Stdout, "%-12s %s\n", lines, a.changedName(r.Changes[i]))
	}
	if stat {
		fmt.Fprintf(a.std.Stdout, "%s: +%d -%d\n", count(len(shown), "file"), added, removed)
	}
	return nil
}

// changedName returns a change's path, and what it was before.
func (a *app) changedName(c project.Change) string {
	name := safe(changes.Visible(c.Path))
	if c.From != "" {
		return safe(changes.Visible(c.From)) + " -> " + name
	}
	return name
}

func (a *app) sessionStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status SESSION",
		Short: "List the files that a session changed in its project",
		Long: `Status names the host's folder of a session's project, and lists the files that the session
added, deleted, modified or renamed in its machine.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.review(cmd.Context(), args[0], nil, false)
			if err != nil {
				return err
			}
			defer r.close()
			if asJSON {
				return a.showDiff(r, false, false, true)
			}
			out := a.std.Stdout
			fmt.Fprintf(out, "session  %s\nproject  %s\n", r.Session, safe(r.Host))
			if r.Branch != "" {
				fmt.Fprintf(out, "branch   %s\n", safe(r.Branch))
			}
			fmt.Fprintf(out, "changed  %s\n", count(len(r.Changes), "file"))
			for _, c := range r.Changes {
				fmt.Fprintf(out, "  %-8s  %s\n", c.Status(), a.changedName(c))
			}
			if r.Ignored > 0 {
				a.ui.note("%s that .gitignore names are not listed", count(r.Ignored, "new file"))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}
