package fleet

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/unitask/unitask/internal/filelock"
)

// scratch is a worker's folder for the files and results of runs. The worker holds its lock; the next worker removes
// the folder of a killed one.
type scratch struct {
	dir  string
	lock *filelock.Lock
}

const (
	scratchPrefix = "unitask-fleet-"
	scratchLock   = "lock"
)

func newScratch() (*scratch, error) {
	sweepScratch(os.TempDir())
	for {
		dir, err := os.MkdirTemp("", scratchPrefix)
		if err != nil {
			return nil, err
		}
		lock, err := filelock.Try(filepath.Join(dir, scratchLock))
		if errors.Is(err, filelock.ErrHeld) { // by a sweep just now, which removes the folder
			continue
		}
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		return &scratch{dir, lock}, nil
	}
}

func (s *scratch) close() {
	if s != nil {
		_ = os.RemoveAll(s.dir)
		s.lock.Unlock()
	}
}

// sweepScratch removes the folders of workers that have exited. It leaves links and other users' folders alone.
func sweepScratch(in string) {
	dirs, _ := filepath.Glob(filepath.Join(in, scratchPrefix+"*"))
	for _, dir := range dirs {
		st, err := os.Lstat(dir)
		if err != nil || !st.IsDir() {
			continue
		}
		if owner, ok := st.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Getuid() {
			continue
		}
		name := filepath.Join(dir, scratchLock)
		if _, err := os.Lstat(name); err != nil {
			continue // it is being created
		}
		if lock, err := filelock.Try(name); err == nil {
			_ = os.RemoveAll(dir)
			lock.Unlock()
		}
	}
}
