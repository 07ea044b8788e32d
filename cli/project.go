package cli

import (
	"fmt"
	"os"
	"path/filepath"
)

// codesProject is --project without a folder.
const codesProject = "the code's"

// projectRoot is the folder that --project brings: the one that is named, or that of the
// code's file, "" for the working directory. That is the nearest above which is a git
// repository; else the nearest with a package.json, which in a repository may be one
// package of several, without the node_modules that they share; else the code's own.
func projectRoot(named, file string) (string, error) {
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
	if home, err := os.UserHomeDir(); root == "/" || err == nil && root == filepath.Clean(home) {
		return "", hint(usage(fmt.Errorf("--project: %s would be all of it", root)), "--project=DIR names a folder")
	}
	return root, nil
}

// nearest is the nearest folder from dir upwards that holds mark, "" if none does.
func nearest(dir, mark string) string {
	for {
		if _, err := os.Lstat(filepath.Join(dir, mark)); err == nil {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			return ""
		}
		dir = above
	}
}
