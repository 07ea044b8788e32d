// Package hostfiles copies files and folders of the host into a run's machine.
//
// It works in two steps, so that a policy can decide in between. Find resolves a path with its links, and opens
// nothing: a pipe's writer does not notice, and the contents stay unread. If the policy grants the found file, Set.Add
// opens it, checks that it is still the same, and lists it. Set.Put sends all of them into the guest.
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

// MaxPath bounds a path, on the host and inside, like PATH_MAX.
const MaxPath = 4000

// maxLinks bounds the links on the way to a file; Linux follows 40.
const maxLinks = 40

// Found is a path of the host with its target. Close it.
type Found struct {
	Host string // absolute
	// Real is the target of the path, links resolved, to which a policy applies. It is also set if nothing exists
	// there; it is "" if there is no path.
	Real string
	// Project is set to treat the folder as a project. In addition to IgnoreFile, the .gitignore files apply, except to
	// node_modules, and .git is left out.
	Project bool

	dir   bool
	place *place // nil if err is set
	err   error  // for callers that may see what exists there
}

// Find finds the file at a path of the host; dir requests a folder. Its error concerns only the path itself. If
// nothing or the wrong kind exists there, Set.Add returns that error: only a caller that may read Real may see
// it.
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
		f.err = errors.New("is a " + KindOf(mode) + ": only regular files can be given")
	}
	return f, nil
}

// Open opens the regular file that was found. Like OpenRoot it is for callers that may read Real.
func (f *Found) Open() (*os.File, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.place.open()
}

// OpenRoot opens the folder that was found.
func (f *Found) OpenRoot() (*os.Root, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.place.openRoot()
}

// Close releases what was found.
func (f *Found) Close() {
	if f.place != nil {
		f.place.close()
		f.place = nil
	}
}

// leadsTo returns the target of an absolute path, with existing links resolved.
func leadsTo(name string) string {
	at, rest, links := "/", strings.Split(name, "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		if part == "" || part == "." {
			continue
		}
		next := path.Join(at, part) // also for ".."
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

// plain removes the operation and the path from an error; the caller names them.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// KindOf names the kind of a file.
func KindOf(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "file"
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

// openRegular opens a regular file below a folder. It opens nothing else, because a pipe's writer would continue.
func openRegular(root *os.Root, rel string) (*os.File, error) {
	st, err := root.Stat(rel)
	if err != nil {
		return nil, plain(err)
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("is a " + KindOf(st.Mode()) + " where a regular file was wanted")
	}
	f, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, plain(err)
	}
	if st, err = f.Stat(); err == nil && !st.Mode().IsRegular() { // exchanged: reading a pipe might never end
		err = errors.New("is a " + KindOf(st.Mode()) + " where a regular file was wanted")
	}
	if err != nil {
		f.Close()
		return nil, plain(err)
	}
	return f, nil
}

// sum adds without overflow: files with holes can have sizes that overflow.
func sum(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
