package hostfiles

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/realpath"
)

// place is a file or folder that was found and not opened. macOS has no descriptor for a file without opening it.
// So a place is a path without links and the result of stat(2); a file opened there later must have the same.
type place struct {
	real string
	info fs.FileInfo
}

// reach finds the file at a path.
func reach(name string) (*place, error) {
	real, err := realpath.Of(name)
	if err != nil {
		return nil, plain(err)
	}
	info, err := os.Lstat(real)
	if err != nil {
		return nil, plain(err)
	}
	return &place{real, info}, nil
}

// open opens the regular file that was found.
func (p *place) open() (*os.File, error) { return p.openAs(os.O_RDONLY | unix.O_NONBLOCK) }

// openRoot opens the folder that was found.
func (p *place) openRoot() (*os.Root, error) {
	f, err := p.openAs(os.O_RDONLY | unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f.Close()
	r, err := os.OpenRoot(p.real)
	if err != nil {
		return nil, plain(err)
	}
	if now, err := r.Stat("."); err != nil || !os.SameFile(now, p.info) {
		r.Close()
		return nil, errExchanged
	}
	return r, nil
}

var errExchanged = errors.New("was exchanged before it was opened")

// openAs opens what was found, if it is unchanged; no component may be a link now.
func (p *place) openAs(flags int) (*os.File, error) {
	f, err := os.OpenFile(p.real, flags|unix.O_NOFOLLOW_ANY, 0)
	if err != nil {
		return nil, plain(err)
	}
	if now, err := f.Stat(); err != nil || !os.SameFile(now, p.info) {
		f.Close()
		return nil, errExchanged
	}
	return f, nil
}

func (p *place) close() {}

// Without snapshots no machine contains folders.

func stampOf(fs.FileInfo) stamp { return stamp{} }

func keepsTimes(*entry) bool { return false }
