package export

import (
	"crypto/rand"
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

// partialFile makes a file to be filled, which is locked.
func partialFile(dir *os.Root, mode fs.FileMode) (name string, f *os.File, err error) {
	for {
		name = partialName + rand.Text()
		f, err = dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return "", nil, err
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // where there are no locks nothing is swept
	return name, f, nil
}

// TakeFile makes or replaces a file with what fill writes, whole or not at all. The user has named it, so the rule for
// names is not asked.
func TakeFile(name string, fill func(io.Writer) error) error {
	dir, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	sweep(dir)
	tmp, f, err := partialFile(dir, 0o600)
	if err != nil {
		return err
	}
	defer dir.Remove(tmp)
	defer f.Close()
	if err := fill(f); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return dir.Rename(tmp, filepath.Base(name))
}

// PartialFolder makes a folder to be filled, with its lock.
func PartialFolder(dir string) (tmp string, lock *os.File, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", nil, err
	}
	sweep(root)
	root.Close()
	if tmp, err = os.MkdirTemp(dir, partialName+"*"); err != nil {
		return "", nil, err
	}
	if lock, err = os.Open(tmp); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(tmp))
	}
	_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return tmp, lock, nil
}

// sweep removes what copies into a folder and the folders in it have left that were killed: files and folders of this
// user's.
func sweep(dir *os.Root) {
	list, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return
	}
	for _, d := range list {
		if strings.HasPrefix(d.Name(), partialName) {
			sweepOne(dir, d.Name())
		}
	}
}

func sweepOne(dir *os.Root, name string) {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Mode().Type()&^fs.ModeDir != 0 || time.Since(st.ModTime()) < partialAge {
		return
	}
	if int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() ||
		syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return
	}
	if now, err := dir.Lstat(name); err != nil || !os.SameFile(now, st) { // another one swept it, and a copy has its name now
		return
	}
	if dir.RemoveAll(name) != nil && st.IsDir() {
		openUp(dir, name)
		_ = dir.RemoveAll(name)
	}
}

// openUp has the folders below one be such that what is in them can be removed. No link is followed.
func openUp(dir *os.Root, name string) {
	root, err := dir.OpenRoot(name)
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
