package changes

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/export"
)

// step is an edit under way.
type step struct {
	edit
	dir  *os.Root
	old  *os.File // the file that is there; nil if none
	st   fs.FileInfo
	made fs.FileInfo // of the new file
	new  *os.File
	tmp  string // the new text's file, and after the change the old text's
	done bool
}

func (s *step) base() string { return path.Base(s.path) }

// rescue gives the old file, which can't have its own name, a name that nothing removes.
func (s *step) rescue() string {
	if s.old == nil || s.tmp == "" {
		return ""
	}
	name := "unitask-before-" + strings.ToLower(rand.Text()[:6])
	if atomicfile.Place(s.dir, s.tmp, name) != nil {
		name = s.tmp // which the next copy may remove
	}
	s.tmp = ""
	return ": the old file is " + path.Join(path.Dir(s.path), name)
}

// own gives a file the owner and group of another one.
func own(f *os.File, as fs.FileInfo) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	want, is := as.Sys().(*syscall.Stat_t), mine.Sys().(*syscall.Stat_t)
	if want.Uid == is.Uid && want.Gid == is.Gid {
		return nil
	}
	return f.Chown(int(want.Uid), int(want.Gid))
}

// links returns a file's number of hard links.
func links(st fs.FileInfo) int {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return int(sys.Nlink)
}

// aclName is the extended attribute with a file's ACL on Linux.
const aclName = "system.posix_acl_access"

// setRights gives a file the permissions and the ACL of another one, and no right of an ACL that it inherited.
func setRights(from, to *os.File, mode fs.FileMode) error {
	acl := make([]byte, 64<<10)
	n, err := unix.Fgetxattr(int(from.Fd()), aclName, acl)
	switch {
	case err == nil:
		return unix.Fsetxattr(int(to.Fd()), aclName, acl[:n], 0) // which sets the permissions, too
	case errors.Is(err, unix.ENOTSUP): // the file system has none
		return to.Chmod(mode)
	case !errors.Is(err, noAttribute):
		return err
	}
	if err := unix.Fremovexattr(int(to.Fd()), aclName); err != nil && !errors.Is(err, noAttribute) {
		return err
	}
	return to.Chmod(mode)
}

// change gives the new text the file's name, in one step. The old file keeps a name until all files are changed.
func (s *step) change() error {
	if s.old == nil {
		err := atomicfile.Place(s.dir, s.tmp, s.base())
		if err == nil {
			s.tmp, s.done = "", true
		} else if errors.Is(err, fs.ErrExist) {
			err = errors.New("it exists now")
		}
		return err
	}
	if err := s.exchange(); err != nil {
		return err
	}
	s.done = true
	now, err := s.dir.Lstat(s.tmp)
	if err != nil {
		return err
	}
	if digest, err := DigestOf(s.old); err != nil || !os.SameFile(now, s.st) || digest != s.from {
		return errors.New("it was changed meanwhile")
	}
	return nil
}

// exchange moves the old file to tmp, and the new one, if there is one, to its place.
func (s *step) exchange() error {
	if s.to != "" && atomicfile.Exchange(s.dir, s.tmp, s.base()) == nil {
		return nil
	}
	// The file is removed, or the file system (NFS, 9p) has no exchange: then the name is free for a moment.
	aside := export.PartialName + rand.Text()
	if err := s.dir.Rename(s.base(), aside); err != nil {
		return err
	}
	if s.to != "" {
		if err := atomicfile.Place(s.dir, s.tmp, s.base()); err != nil {
			if e := atomicfile.Place(s.dir, aside, s.base()); e != nil {
				_ = s.dir.Remove(s.tmp)
				s.tmp = aside
				return fmt.Errorf("%w%s", errors.Join(err, e), s.rescue())
			}
			return err
		}
	}
	s.tmp = aside
	return nil
}

// back takes a change back. A file that somebody else put there meanwhile stays.
func (s *step) back() error {
	if !s.done {
		return nil
	}
	s.done = false
	now, err := s.dir.Lstat(s.base())
	ours := s.made != nil && err == nil && os.SameFile(now, s.made)
	switch {
	case s.old == nil && ours:
		return s.dir.Remove(s.base())
	case s.old == nil:
		return nil
	case s.to == "" || !ours && errors.Is(err, fs.ErrNotExist):
		if err := atomicfile.Place(s.dir, s.tmp, s.base()); err != nil {
			return err
		}
		s.tmp = ""
		return nil
	case !ours:
		return errors.New("another file is in its place")
	}
	if atomicfile.Exchange(s.dir, s.tmp, s.base()) == nil {
		return nil
	}
	if err := s.dir.Rename(s.tmp, s.base()); err != nil {
		return err
	}
	s.tmp = ""
	return nil
}
