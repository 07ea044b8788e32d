package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/realpath"
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

// descriptor returns a path that leads to an open file, and not by its name.
func descriptor(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// realPath returns where an open file is, links resolved: the kernel's own answer, which
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
	name = realpath.Stored(name)                                         // a folder that takes names in any case has the one that was asked for
	if now, err := os.Lstat(name); err != nil || !os.SameFile(st, now) { // removed or renamed since
		return "", errors.New("was moved or removed while it was looked for")
	}
	return name, nil
}

// stampOf returns a file's stamp.
func stampOf(st fs.FileInfo) stamp {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}
	}
	return stamp{uint64(sys.Dev), sys.Ino, sys.Ctim.Nano()}
}

// Filesystems that note each change of a file, through a mapping too, in a time that
// programs can't set. tmpfs does not note those, and servers of files have clocks of their
// own.
var steadyTypes = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC,
	unix.OVERLAYFS_SUPER_MAGIC}

// keepsTimes reports whether the stamps of a file's device can be trusted.
func keepsTimes(e *entry) bool {
	f, err := e.open()
	if err != nil {
		return false
	}
	if !e.kept() {
		defer f.Close()
	}
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && slices.Contains(steadyTypes, int64(st.Type))
}
