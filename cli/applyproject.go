package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/internal/changes"
	"github.com/unitask/unitask/internal/export"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/record"
)

// hasProject reports whether an argument of apply is a session with a project: its name, which no run has, or its id.
func hasProject(runs *record.Store, name string) bool {
	if name != "" && name[0] >= 'a' && name[0] <= 'z' && name != "last" {
		return true
	}
	id, err := runs.Find(name)
	if err != nil {
		return false
	}
	_, err = project.Open(runs.Path(id, ""))
	return err == nil
}

// applyProject proposes what a session changed in its project, and applies it to the project's folder.
func (a *app) applyProject(cmd *cobra.Command, store *changes.Store, session string, paths []string,
	f applyFlags) error {
	if f.into != "" {
		return usage(errors.New("a session's changes go into its project's folder: leave --into away"))
	}
	r, err := a.review(cmd.Context(), session, paths, true)
	if err != nil {
		return err
	}
	defer r.close()
	p, err := r.Propose(r.brought, paths)
	if errors.Is(err, project.ErrFolder) {
		return usage(err)
	}
	if err != nil {
		return err
	}
	f.into = r.Host
	if len(p.Files) > 0 || len(p.Conflicts) == 0 {
		err = a.applyFiles(cmd, store, "session "+session, p.Files, p.Left, f)
	} else {
		a.noteLeft(p.Left, f)
	}
	if err != nil {
		return err
	}
	if !f.asJSON {
		for _, name := range p.Merged {
			a.ui.note("merged with what changed here since: %s", safe(name))
		}
	}
	if len(p.Conflicts) > 0 {
		a.ui.note("both sides changed %s: %s", count(len(p.Conflicts), "file"), safe(strings.Join(p.Conflicts, ", ")))
		a.code = 1
	}
	return nil
}

// onlyThere returns the removals of files that a folder has and a copy of a session's folder lacks: all, or those with
// these paths. Names that never leave a machine are not compared.
func onlyThere(dir, copied string, paths []string) (files []changes.File, err error) {
	if dir == "" {
		return nil, errors.New("--delete needs --into")
	}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		rel, e := filepath.Rel(dir, name)
		if err != nil || e != nil || rel == "." {
			return errors.Join(err, e)
		}
		if export.Barred(filepath.Base(rel)) != "" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		named := slices.Contains(paths, rel)
		if !d.Type().IsRegular() || !named && len(paths) > 0 {
			return nil
		}
		if _, err := os.Lstat(filepath.Join(copied, rel)); errors.Is(err, fs.ErrNotExist) {
			files = append(files, changes.File{Path: filepath.ToSlash(rel), Named: named})
		}
		return nil
	})
	return files, err
}
