package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/filelock"
)

// Folders of the store are complete or absent: they are filled, and removed, under a name that begins with newPrefix.
// The process that fills a folder holds its lock, so that nobody takes it for abandoned, however long that takes.

const newPrefix = ".new-"

// sweepAge is the age from which an unlocked folder counts as abandoned. A new folder is not locked yet, and a folder
// that is being removed never is.
const sweepAge = time.Hour

// newFolder creates a folder that is to be filled and then renamed, and removes abandoned folders beside it. done
// removes the folder, if it still has that name.
func newFolder(beside string) (dir string, done func(), err error) {
	sweepFolder(beside)
	if dir, err = os.MkdirTemp(beside, newPrefix); err != nil {
		return "", nil, err
	}
	held, err := filelock.TryAlone(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() {
		removeTree(dir)
		held.Unlock()
	}, nil
}

// removeFolder removes a folder atomically: a killed process does not leave half of it. A missing folder is not an
// error.
func removeFolder(dir string) error {
	gone, err := atomicfile.SetAside(dir, newPrefix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// sweepFolder removes what killed processes left behind.
func sweepFolder(dir string) {
	for _, left := range glob(filepath.Join(dir, newPrefix+"*")) {
		st, err := os.Lstat(left)
		if err != nil || time.Since(st.ModTime()) <= sweepAge {
			continue
		}
		held, err := filelock.TryAlone(left)
		if err != nil {
			continue
		}
		removeTree(left)
		held.Unlock()
	}
}
