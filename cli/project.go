package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/unitask/unitask/internal/userdir"
)

// codesProject is --project without a folder.
const codesProject = "the code's"

// projectRoot returns the folder of --project: the named one, or that of the code's file, "" for the working
// directory. Without a name, this is the nearest git repository above. Otherwise it is the nearest folder with a
// package.json; in a repository that may be one package of several, without their shared node_modules. Otherwise
// it is the code's own folder. The root is never a folder with more than a project: the user's home, or
// unitask's.
func projectRoot(named, file, home string) (string, error) {
	if named != codesProject {
		return named, nil
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return "", err
	}
	root := dir
	for _, mark := range []string{".git", "package.json"} {
		if found := nearest(dir, mark); found != "" {
			root = found
			break
		}
	}
	if err := onlyProject(root, home); err != nil {
		return "", err
	}
	return root, nil
}

// onlyProject returns an error for a folder with more than a project.
func onlyProject(root, home string) error {
	homes := []string{home}
	if user, err := userdir.Home(); err == nil {
		homes = append(homes, user)
	}
	for _, home := range append(homes, "/") {
		if home != "" && holds(root, home) {
			return hint(usage(fmt.Errorf("--project: %s holds %s too", root, filepath.Clean(home))),
				"--project=DIR names a folder")
		}
	}
	return nil
}

// holds reports whether a path is a folder or is inside it, with all links resolved.
func holds(folder, path string) bool {
	for _, real := range []func(string) (string, error){filepath.Abs, filepath.EvalSymlinks} {
		f, err := real(folder)
		p, pathErr := real(path)
		if rel, relErr := filepath.Rel(f, p); errors.Join(err, pathErr, relErr) == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}

// nearest returns the nearest folder from dir upwards that contains mark, "" if none does. A mark of another user does
// not count, unless that user also owns the code's folder. Otherwise anyone who can write to a folder above (/tmp)
// could have all of it copied. Git has the same rule (safe.directory).
func nearest(dir, mark string) string {
	code, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	ours := []uint32{0, uint32(os.Getuid()), owner(code)}
	for {
		if st, err := os.Lstat(filepath.Join(dir, mark)); err == nil && slices.Contains(ours, owner(st)) {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			return ""
		}
		dir = above
	}
}

func owner(st os.FileInfo) uint32 { return st.Sys().(*syscall.Stat_t).Uid }
