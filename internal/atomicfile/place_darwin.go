package atomicfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// renameFree renames a file to a name that is free, in one step.
func renameFree(dir *os.Root, tmp, name string) error {
	return inFolder(dir, func(fd int) error { return unix.RenameatxNp(fd, tmp, fd, name, unix.RENAME_EXCL) })
}

// Exchange gives each of two files in a folder the other's name, in one step. Some file systems have no such step.
func Exchange(dir *os.Root, a, b string) error {
	return inFolder(dir, func(fd int) error { return unix.RenameatxNp(fd, a, fd, b, unix.RENAME_SWAP) })
}
