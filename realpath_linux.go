package unitask

import (
	"errors"
	"os"
	"strconv"
)

// realPath is where an open file is, links resolved: the kernel's own answer, which
// nobody can change under our hands.
func realPath(f *os.File) (string, error) {
	st, err := os.Stat("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return "", err
	}
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return "", err
	}
	if now, err := os.Lstat(name); err != nil || !os.SameFile(st, now) { // removed or renamed since
		return "", errors.New("was moved or removed while it was opened")
	}
	return name, nil
}
