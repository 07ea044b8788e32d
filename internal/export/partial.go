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

// PartialName begins the name of a copy until it is complete. Its process holds a lock on it, so that the next copy
// into the same folder can recognize the remains of a killed process.
const PartialName = ".unitask-cp-"

// partialAge is the minimum age of remains: a new copy is not locked for a moment.
const partialAge = time.Minute

// PartialFile creates a locked file to be filled, whose remains a later copy removes.
func PartialFile(dir *os.Root, mode fs.FileMode) (name string, f *os.File, err error) {
	for {
		name = PartialName + rand.Text()
		f, err = dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return "", nil, err
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // without locks, nothing is swept
	return name, f, nil
}

// TakeFile creates or replaces a file with the output of fill, completely or not at all. The user has chosen the name,
// so the rule for names does not apply.
func TakeFile(name string, fill func(io.Writer) error) error {
	dir, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	sweep(dir)
	tmp, f, err := PartialFile(dir, 0o600)
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

// PartialFolder creates a locked folder to be filled.
func PartialFolder(dir string) (tmp string, lock *os.File, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", nil, err
	}
	sweep(root)
	root.Close()
	if tmp, err = os.MkdirTemp(dir, PartialName+"*"); err != nil {
		return "", nil, err
	}
	if lock, err = os.Open(tmp); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(tmp))
	}
	_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return tmp, lock, nil
}

// sweep removes the remains of killed copies in a folder and its subfolders: this user's files and folders.
func sweep(dir *os.Root) {
	list, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return
	}
	for _, d := range list {
		if strings.HasPrefix(d.Name(), PartialName) {
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
	// another process swept it, and a new copy has the name
	if now, err := dir.Lstat(name); err != nil || !os.SameFile(now, st) {
		return
	}
	if dir.RemoveAll(name) != nil && st.IsDir() {
		openUp(dir, name)
		_ = dir.RemoveAll(name)
	}
}

// openUp makes the folders below a folder writable, so that their contents can be removed. It follows no links.
func openUp(dir *os.Root, name string) {
	root, err := dir.OpenRoot(name)
	if err != nil {
		return
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() { // before its contents are read
			_ = root.Chmod(name, 0o700)
		}
		return nil // skip unreadable folders
	})
}
