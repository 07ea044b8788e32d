package atomicfile

import (
	"errors"
	"io/fs"
	"os"
)

// Place renames the file tmp in a folder to name. If name exists, Place returns fs.ErrExist and replaces nothing. Both
// names are in the folder itself.
func Place(dir *os.Root, tmp, name string) error {
	err := renameFree(dir, tmp, name)
	if err == nil || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The file system has no such rename (NFS, 9p).
	if err := linkFree(dir, tmp, name); err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return reserveFree(dir, tmp, name) // and no hard links
}

// linkFree links the file to the new name, and removes the old one.
func linkFree(dir *os.Root, tmp, name string) error {
	err := dir.Link(tmp, name)
	if err == nil {
		_ = dir.Remove(tmp)
	}
	return err
}

// reserveFree reserves the name with an empty file, which the rename replaces. A process killed in between leaves the
// empty file.
func reserveFree(dir *os.Root, tmp, name string) error {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	if err = dir.Rename(tmp, name); err != nil {
		_ = dir.Remove(name)
	}
	return err
}

// inFolder calls use with the folder's file descriptor.
func inFolder(dir *os.Root, use func(fd int) error) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return use(int(f.Fd()))
}
