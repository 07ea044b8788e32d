package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// place is a file or folder that was found and not opened: a descriptor of O_PATH
// (open(2)) stands for it, whatever is exchanged at its path meanwhile.
type place struct {
	at   *os.File
	real string
	info fs.FileInfo
}

// reach finds what is at a path.
func reach(name string) (*place, error) {
	at, err := os.OpenFile(name, unix.O_PATH, 0)
	if err != nil {
		return nil, plain(err)
	}
	p := &place{at: at}
	if p.info, err = at.Stat(); err == nil {
		p.real, err = realPath(at)
	}
	if err != nil {
		at.Close()
		return nil, plain(err)
	}
	return p, nil
}

// open opens the regular file that was found. It can't block: what the descriptor
// stands for does not change its kind.
func (p *place) open() (*os.File, error) {
	f, err := os.OpenFile(descriptor(p.at), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	return f, plain(err)
}

// openRoot opens the folder that was found.
func (p *place) openRoot() (*os.Root, error) {
	r, err := os.OpenRoot(descriptor(p.at))
	return r, plain(err)
}

func (p *place) close() { p.at.Close() }

// descriptor is a path that leads to an open file, and not by its name.
func descriptor(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// realPath is where an open file is, links resolved: the kernel's own answer, which
// nobody can change under our hands.
func realPath(f *os.File) (string, error) {
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	name, err := os.Readlink(descriptor(f))
	if err != nil {
		return "", err
	}
	if now, err := os.Lstat(name); err != nil || !os.SameFile(st, now) { // removed or renamed since
		return "", errors.New("was moved or removed while it was looked for")
	}
	return name, nil
}
