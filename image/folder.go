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

// Folders of the store are whole or not there: they are filled, and removed, under a name that begins with newPrefix.
// Who fills one holds its lock, so that nobody takes it for left behind, however long that is.

const newPrefix = ".new-"

// sweepAge is how old a folder that nobody holds must be to be taken for left behind: one that was just made is not
// held yet, and what is being removed never is.
const sweepAge = time.Hour

// newFolder makes a folder that is to be filled and then renamed, and removes what was left behind beside it. done
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

// removeFolder removes a folder at once: who is killed amid it leaves no half. There may be none.
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

// sweepFolder removes what those who were killed left behind.
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
