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

// place is a file or folder that was found and not opened: an O_PATH descriptor (open(2)) refers to it, whatever
// replaces it at its path.
type place struct {
	at   *os.File
	real string
	info fs.FileInfo
}

// reach finds the file at a path.
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

// open opens the regular file that was found. It can't block: the kind of a descriptor's file does not change.
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

// descriptor returns a path that refers to an open file by its descriptor.
func descriptor(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// realPath returns the path of an open file, links resolved: the kernel's own answer, which nobody can change
// meanwhile.
func realPath(f *os.File) (string, error) {
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	name, err := os.Readlink(descriptor(f))
	if err != nil {
		return "", err
	}
	// A folder that takes names in any case has the one that was asked for.
	name = realpath.Stored(name)
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

// steadyTypes are file systems that record each change of a file, also through a mapping, with a time that programs
// can't set. tmpfs does not record those, and file servers have their own clocks.
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
