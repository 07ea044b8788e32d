// Package hostfiles copies files and folders of the host into a run's machine.
//
// It works in two steps, so that a policy can decide in between. Find resolves a path with its links, and opens
// nothing: a pipe's writer does not notice, and the contents stay unread. Set.Add opens the found file, if the policy
// grants it, checks that it is still the same, and lists it; Set.Put sends all of them into the guest.
//
// The package knows no policy. It never writes to the host.
package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/unitask/unitask/internal/realpath"
)

// MaxPath bounds a path, on the host and inside, as PATH_MAX does.
const MaxPath = 4000

// maxLinks bounds the links on the way to a file; Linux follows 40.
const maxLinks = 40

// Found is a path of the host and where it leads. Close it.
type Found struct {
	Host string // absolute
	// Real is where the path leads, links resolved: what a policy decides on. It is set
	// also where nothing is; it is "" for what has no path.
	Real string
	// Project is set by who wants the folder as a project: beside IgnoreFile's, the
	// .gitignore files count, but not for node_modules, and .git stays out.
	Project bool

	dir   bool
	place *place // nil with an err
	err   error  // for who may know what is there
}

// Find finds what is at a path of the host; dir says that a folder is wanted. The error
// is about the path itself. That nothing is there, or not what is wanted, Set.Add tells:
// only who may read what is at Real may know.
func Find(host string, dir bool) (*Found, error) {
	switch {
	case host == "":
		return nil, errors.New("is no path")
	case strings.ContainsRune(host, 0) || len(host) > MaxPath:
		return nil, fmt.Errorf("is no path: it must have no NUL byte and at most %d bytes", MaxPath)
	}
	abs, err := filepath.Abs(host)
	if err != nil {
		return nil, err
	}
	f := &Found{Host: abs, dir: dir}
	if f.place, f.err = reach(abs); f.err != nil {
		f.Real = realpath.Stored(leadsTo(abs))
		return f, nil
	}
	f.Real = f.place.real
	switch mode := f.place.info.Mode(); {
	case dir && !mode.IsDir():
		f.err = errors.New("is not a folder: --file brings files")
	case !dir && mode.IsDir():
		f.err = errors.New("is a folder: --dir brings folders")
	case !dir && !mode.IsRegular():
		f.err = errors.New("is a " + kindOf(mode) + ": only regular files can be given")
	}
	return f, nil
}

// Close lets go of what was found.
func (f *Found) Close() {
	if f.place != nil {
		f.place.close()
		f.place = nil
	}
}

// leadsTo returns where an absolute path leads, links resolved as far as there are any.
func leadsTo(name string) string {
	at, rest, links := "/", strings.Split(name, "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		if part == "" || part == "." {
			continue
		}
		next := path.Join(at, part) // also of ".."
		target, err := os.Readlink(next)
		if err != nil || links == maxLinks {
			at = next
			continue
		}
		links++
		if path.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at
}

// plain is an error without the operation and the path, which the caller names.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func kindOf(mode fs.FileMode) string {
	switch mode.Type() {
	case fs.ModeNamedPipe:
		return "pipe"
	case fs.ModeSocket:
		return "socket"
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return "device"
	case fs.ModeDir:
		return "folder"
	case fs.ModeSymlink:
		return "link"
	}
	return "special file"
}

// openRegular opens a regular file below a folder. What is something else is not opened: a pipe's writer would
// continue.
func openRegular(root *os.Root, rel string) (*os.File, error) {
	st, err := root.Stat(rel)
	if err != nil {
		return nil, plain(err)
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("is a " + kindOf(st.Mode()) + " where a regular file was wanted")
	}
	f, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, plain(err)
	}
	if st, err = f.Stat(); err == nil && !st.Mode().IsRegular() { // it was exchanged in between: reading a pipe might never end
		err = errors.New("is a " + kindOf(st.Mode()) + " where a regular file was wanted")
	}
	if err != nil {
		f.Close()
		return nil, plain(err)
	}
	return f, nil
}

// sum is at most the largest number: files with holes have sizes that make it overflow.
func sum(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
