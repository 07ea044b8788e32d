package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/changes"
	"github.com/unitask/unitask/internal/export"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/record"
)

// applyFlags are the flags of unitask apply.
type applyFlags struct {
	into                           string
	yes, dry, undo, asJSON, remove bool
}

func (a *app) applyCommand() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply [RUN|SESSION|SESSION:FOLDER|CHANGE [PATH...]]",
		Short: "Change the host's files to what a run, a session or a model made",
		Long: `Apply compares files with those of a folder, shows the diff, asks, and changes all
files or none. A run's files are those that its code left in /out, a session's those of the
FOLDER in its machine (below /work). SESSION alone brings back what a session changed in its project,
into the project's folder, with deletions and renames. CHANGE is the id of what a model proposed over MCP, or of
an earlier apply. Without an argument, apply lists these.

Apply never follows a link and never makes a file executable. Except for a project or with --delete, it
removes no file that only the folder has. If both sides changed a file of a project, apply merges them,
or writes the session's text as FILE.conflict beside it, and exits with 1. Files that tools run because they are there
(Makefile, .envrc) and executable files stay as they are, unless you name them as PATH. A file
that changed after the diff stops the whole change.`,
		Example: `  unitask apply last --into src
  unitask apply last --dry-run
  unitask apply build:src --into src
  unitask apply build --dry-run
  unitask apply --undo change-20261128-101500000-k3x7qa`,
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			store := changes.Open(rt.Images().Home(), rt.Audit())
			switch {
			case len(args) == 0 && (f.undo || f.yes || f.dry || f.into != ""):
				return usage(errors.New("which run or change? unitask apply lists the changes, unitask runs ls the runs"))
			case len(args) == 0:
				return a.listChanges(store, f.asJSON)
			case f.undo && (f.yes || f.dry || f.into != "" || len(args) > 1):
				return usage(errors.New("--undo takes the id of a change, and neither paths nor other flags"))
			case f.undo:
				set, err := store.Undo(args[0])
				return a.moved(set, nil, "", "undone", f, err)
			case f.yes && f.dry:
				return usage(errors.New("--dry-run changes nothing, --yes does: give one of them"))
			case strings.HasPrefix(args[0], changes.Prefix):
				return a.applyChange(cmd, store, args, f)
			}
			if session, folder, ok := inSession(args[0]); ok {
				return a.applySession(cmd, store, session, folder, args[1:], f)
			}
			if f.remove {
				return usage(errors.New("--delete goes with SESSION:FOLDER"))
			}
			if hasProject(rt.Runs(), args[0]) {
				return a.applyProject(cmd, store, args[0], args[1:], f)
			}
			return a.applyRun(cmd, rt, store, args, f)
		}),
	}
	fl := cmd.Flags()
	fl.StringVar(&f.into, "into", "", "the folder whose files change (default the current one)")
	fl.BoolVarP(&f.yes, "yes", "y", false, "change the files without a question")
	fl.BoolVar(&f.dry, "dry-run", false, "print the diff, and change nothing")
	fl.BoolVar(&f.undo, "undo", false, "give the files their earlier texts again")
	fl.BoolVar(&f.remove, "delete", false, "with SESSION:FOLDER, remove the files that only the host's folder has")
	fl.BoolVar(&f.asJSON, "json", false, "print one object, with the diff in it; it needs --yes, --dry-run or --undo")
	return cmd
}

func (a *app) listChanges(store *changes.Store, asJSON bool) error {
	list, err := store.List()
	if err != nil {
		return err
	}
	slices.Reverse(list)
	if asJSON {
		return a.ui.json(append([]*changes.Set{}, list...))
	}
	var rows [][]string
	for _, set := range list {
		rows = append(rows, []string{set.ID, string(set.State), strconv.Itoa(len(set.Changes)), safe(set.Dir),
			safe(set.From), safe(set.By), set.Created.Local().Format(time.DateTime)})
	}
	a.ui.table("CHANGE|STATE|FILES|FOLDER|FROM|BY|CREATED", rows)
	return nil
}

// applyChange applies a set that somebody proposed, or that was undone.
func (a *app) applyChange(cmd *cobra.Command, store *changes.Store, args []string, f applyFlags) error {
	if len(args) > 1 || f.into != "" {
		return usage(errors.New("a change has its files and folder already: leave the paths and --into away"))
	}
	set, err := store.Get(args[0])
	if err != nil {
		return usage(err)
	}
	return a.applySet(cmd, store, set, nil, f)
}

// applyRun proposes a run's files as changes to a folder, and applies them.
func (a *app) applyRun(cmd *cobra.Command, rt *unitask.Runtime, store *changes.Store, args []string,
	f applyFlags) error {
	id, err := rt.Runs().Find(args[0])
	if err != nil {
		if errors.Is(err, record.ErrNotFound) {
			return usage(err)
		}
		return err
	}
	in, err := rt.History().Inspect(id, 0)
	if err != nil {
		return err
	}
	if in.Ended == nil {
		return usage(fmt.Errorf("run %s has no result yet, and so no files", id))
	}
	files, err := filesOf(rt.Runs(), id, in.Ended.Artifacts, args[1:])
	if err != nil {
		return usage(err)
	}
	return a.applyFiles(cmd, store, "run "+id, files, nil, f)
}

// applySession proposes the files of a session's folder as changes to a folder, and applies them.
func (a *app) applySession(cmd *cobra.Command, store *changes.Store, session, folder string, paths []string,
	f applyFlags) error {
	tmp, err := os.MkdirTemp("", "unitask-apply-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	copied := filepath.Join(tmp, "folder")
	left, err := hostfiles.TakeFolder(copied, func(w io.Writer) error {
		_, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpPack, Session: session, Path: folder},
			sessiond.Streams{Stdout: w})
		return err
	})
	if err != nil {
		return err
	}
	var files []changes.File
	err = filepath.WalkDir(copied, func(name string, d fs.DirEntry, err error) error {
		rel, e := filepath.Rel(copied, name)
		named := slices.Contains(paths, rel)
		if err == nil && e == nil && d.Type().IsRegular() && (named || len(paths) == 0) {
			files = append(files, changes.File{Path: rel, Named: named,
				Open: func() (io.ReadCloser, error) { return os.Open(name) }})
		}
		return errors.Join(err, e)
	})
	if err != nil {
		return err
	}
	if f.remove {
		gone, err := onlyThere(f.into, copied, paths)
		if err != nil {
			return usage(err)
		}
		files = append(files, gone...)
	}
	for _, path := range paths {
		if !slices.ContainsFunc(files, func(file changes.File) bool { return file.Path == path }) {
			return usage(fmt.Errorf("session %s has no file %q in %s", session, path, cmp.Or(folder, "/work")))
		}
	}
	return a.applyFiles(cmd, store, "session "+session, files, left, f)
}

// applyFiles proposes files as changes to the folder of --into, and applies them.
func (a *app) applyFiles(cmd *cobra.Command, store *changes.Store, from string, files []changes.File,
	barred []export.Left, f applyFlags) error {
	dir, err := filepath.Abs(f.into)
	if err == nil {
		dir, err = realpath.Of(dir)
	}
	if err != nil {
		return usage(fmt.Errorf("--into: %w", err))
	}
	set, left, err := store.Propose(dir, from, "", files)
	left = append(barred, left...)
	if errors.Is(err, changes.ErrNothing) {
		a.noteLeft(left, f)
		return usage(fmt.Errorf("%s: %w in %s", from, err, safe(dir)))
	}
	if err != nil {
		return err
	}
	return errors.Join(a.applySet(cmd, store, set, left, f), a.forget(store, set))
}

// forget removes a set that is not applied: it can be proposed again.
func (a *app) forget(store *changes.Store, set *changes.Set) error {
	if now, err := store.Get(set.ID); err != nil || now.State != changes.Proposed {
		return nil
	}
	return store.Remove(set.ID)
}

// filesOf returns a run's artifacts as proposed files: all, or those with these paths.
func filesOf(runs *record.Store, id string, artifacts []record.Artifact, paths []string) (files []changes.File,
	err error) {
	for _, path := range paths {
		if !slices.ContainsFunc(artifacts, func(art record.Artifact) bool { return art.Path == path }) {
			return nil, fmt.Errorf("run %s left no file %q in /out", id, path)
		}
	}
	for _, art := range artifacts {
		if named := slices.Contains(paths, art.Path); named || len(paths) == 0 {
			files = append(files, changes.File{Path: art.Path, Named: named,
				Open: func() (io.ReadCloser, error) { return runs.OpenArtifact(id, art.Path) }})
		}
	}
	return files, nil
}

// applySet shows a set, asks, and applies it.
func (a *app) applySet(cmd *cobra.Command, store *changes.Store, set *changes.Set, left []export.Left,
	f applyFlags) error {
	var diff strings.Builder
	unshown, err := store.Diff(&diff, set)
	if err != nil {
		return err
	}
	if f.asJSON && !f.yes && !f.dry {
		return usage(errors.New("--json needs --yes or --dry-run: it asks nothing"))
	}
	if !f.asJSON {
		a.ui.clear()
		if _, err := io.WriteString(a.std.Stdout, diff.String()); err != nil {
			return err
		}
		a.noteLeft(left, f)
		if unshown > 0 {
			a.ui.note("the diff does not show %s, only the size and digest of each", count(unshown, "file"))
		}
	}
	if f.dry {
		return a.moved(set, left, diff.String(), "not changed", f, nil)
	}
	if !f.yes {
		question := fmt.Sprintf("Change %s in %s?", count(len(set.Changes), "file"), safe(set.Dir))
		if !isYes(a.ask(cmd.Context(), bufio.NewScanner(a.std.Stdin), question, "no")) {
			if err := errors.Join(store.Refuse(set, "its user denied it"), a.forget(store, set)); err != nil {
				return err
			}
			return usage(errors.New("nothing was changed: answer yes, or give --yes"))
		}
	}
	set, err = store.Apply(set.ID)
	return a.moved(set, left, diff.String(), "changed", f, err)
}

func (a *app) noteLeft(left []export.Left, f applyFlags) {
	for _, l := range left {
		if !f.asJSON {
			a.ui.alarm("left out: %s: %s", safe(l.Path), safe(l.Reason))
		}
	}
}

// moved reports what became of a set.
func (a *app) moved(set *changes.Set, left []export.Left, diff, how string, f applyFlags, err error) error {
	if errors.Is(err, changes.ErrNotFound) || errors.Is(err, changes.ErrState) {
		return usage(err)
	}
	if err != nil {
		return err
	}
	if f.asJSON {
		return a.ui.json(struct {
			*changes.Set
			Left []export.Left `json:"leftOut,omitempty"`
			Diff string        `json:"diff,omitempty"`
		}{set, left, diff})
	}
	for _, path := range set.Left {
		a.ui.note("left as it is, since it has another text: %s", safe(path))
	}
	a.ui.note("%s: %s in %s", how, count(len(set.Changes)-len(set.Left), "file"), safe(set.Dir))
	if set.State == changes.Applied {
		a.ui.note("to undo it: unitask apply --undo %s", set.ID)
	}
	return nil
}
