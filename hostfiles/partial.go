package hostfiles

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// What is copied is made under a name that begins like this, beside the one that it is to have. Who makes it holds a
// lock on it, so that the next copy into the same folder knows what a killed one has left.
const partialName = ".unitask-cp-"

// partialAge is how old what was left is at least: one that begins has no lock for a moment.
const partialAge = time.Minute

// TakeFile makes or replaces a file with what fill writes, whole or not at all.
func TakeFile(name string, fill func(io.Writer) error) error {
	sweep(filepath.Dir(name))
	tmp, err := os.CreateTemp(filepath.Dir(name), partialName+"*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	_ = syscall.Flock(int(tmp.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // where there are no locks nothing is swept
	if err := fill(tmp); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// makePartial makes a folder to be filled, with its lock.
func makePartial(dir string) (tmp string, lock *os.File, err error) {
	sweep(dir)
	if tmp, err = os.MkdirTemp(dir, partialName+"*"); err != nil {
		return "", nil, err
	}
	if lock, err = os.Open(tmp); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(tmp))
	}
	_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return tmp, lock, nil
}

// sweep removes what copies into a folder have left that were killed: files and folders of this user's.
func sweep(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, d := range list {
		if strings.HasPrefix(d.Name(), partialName) {
			sweepOne(filepath.Join(dir, d.Name()))
		}
	}
}

func sweepOne(name string) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Mode().Type()&^fs.ModeDir != 0 || time.Since(st.ModTime()) < partialAge {
		return
	}
	if int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() || syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return
	}
	if now, err := os.Lstat(name); err != nil || !os.SameFile(now, st) { // another one swept it, and a copy has its name now
		return
	}
	if os.RemoveAll(name) != nil && st.IsDir() {
		openUp(name)
		_ = os.RemoveAll(name)
	}
}

// openUp has the folders below one be such that what is in them can be removed. No link is followed.
func openUp(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() { // before it is read
			_ = root.Chmod(name, 0o700)
		}
		return nil // of one that can't be read nothing is walked
	})
}
