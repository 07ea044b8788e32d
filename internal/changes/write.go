package changes

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/export"
	"github.com/unitask/unitask/internal/realpath"
)

// errHalf means that a failed write could not be taken back.
var errHalf = errors.New("the files could not be changed back")

// edit changes a file from one text to another, by their digests.
type edit struct {
	path, from, to string
	before         string      // the text when the set was made: from, or to
	text           string      // a file with the new text
	mode           fs.FileMode // of a file that does not exist
	was            fs.FileMode // the file's permissions when the set was made
}

// writer changes files below a folder. look checks all, write changes all or none.
type writer struct {
	root  *os.Root
	dirs  map[string]*os.Root
	steps []*step
	made  []string // folders
	same  []string // files that have the text already
	left  []string // files with another text, which an undo leaves
}

func newWriter(dir string) (*writer, error) {
	root, err := OpenDir(dir)
	if err != nil {
		return nil, err
	}
	return &writer{root: root, dirs: map[string]*os.Root{".": root}}, nil
}

// OpenDir opens a folder whose path has no links.
func OpenDir(dir string) (*os.Root, error) {
	if real, err := realpath.Of(dir); err != nil || real != dir {
		return nil, fmt.Errorf("the folder %s is gone, or leads elsewhere now", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	at, err := os.Lstat(dir)
	opened, e := root.Stat(".")
	if real, _ := realpath.Of(dir); err != nil || e != nil || real != dir || !os.SameFile(at, opened) {
		root.Close()
		return nil, fmt.Errorf("the folder %s was exchanged meanwhile", dir)
	}
	return root, nil
}

func (w *writer) close() {
	for _, s := range w.steps {
		for _, f := range []*os.File{s.old, s.new} {
			if f != nil {
				f.Close()
			}
		}
	}
	for _, dir := range w.dirs {
		dir.Close()
	}
}

// look opens the files that are there, and compares them with the edits. resumed means that a process began the edits
// and ended meanwhile; leave means that files with another text stay as they are.
func (w *writer) look(id string, edits []edit, resumed, leave bool) error {
	var conflicts []string
	for _, e := range edits {
		s, why, err := w.lookAt(e, resumed)
		switch {
		case err != nil:
			return err
		case why != "" && leave:
			w.left = append(w.left, e.path)
		case why != "":
			conflicts = append(conflicts, e.path+": "+why)
		case s == nil:
			w.same = append(w.same, e.path)
		default:
			w.steps = append(w.steps, s)
		}
	}
	if conflicts != nil {
		return &ConflictError{id, conflicts}
	}
	return nil
}

// lookAt returns the step of an edit; nil if the file has the text already. why says why the file can't be changed.
func (w *writer) lookAt(e edit, resumed bool) (s *step, why string, err error) {
	old, st, err := OpenFile(w.root, e.path)
	if errors.Is(err, ErrKind) {
		return nil, err.Error(), nil
	}
	if err != nil {
		return nil, "", err
	}
	s = &step{edit: e, old: old, st: st}
	digest := ""
	if old != nil {
		_ = syscall.Flock(int(old.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) // so that no copy removes it as remains
		if digest, err = DigestOf(old); err != nil {
			old.Close()
			return nil, "", err
		}
	}
	switch {
	case digest == e.to:
		s = nil
	case digest == "" && resumed && w.moveBack(e): // its process ended between two names of the file (exchange)
		return w.lookAt(e, false)
	case digest != e.from:
		why = "it has another text"
	case old != nil && st.Mode()&0o111 != 0 && e.was&0o111 == 0:
		why = "it can be executed now"
	default:
		return s, "", nil
	}
	if old != nil {
		old.Close()
	}
	return s, why, nil
}

// moveBack gives the file of the user, which a process left under the name of a copy, its own name again.
func (w *writer) moveBack(e edit) bool {
	if e.before == "" {
		return false
	}
	dir, err := w.folder(path.Dir(e.path))
	if err != nil {
		return false
	}
	list, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return false
	}
	for _, d := range list {
		if !strings.HasPrefix(d.Name(), export.PartialName) {
			continue
		}
		f, _, err := OpenFile(dir, d.Name())
		if err != nil || f == nil {
			continue
		}
		digest, err := DigestOf(f)
		f.Close()
		if err == nil && digest == e.before {
			return atomicfile.Place(dir, d.Name(), path.Base(e.path)) == nil
		}
	}
	return false
}

// missing returns the folders that the edits need and that do not exist, outer ones first.
func (w *writer) missing() (list []string) {
	for _, s := range w.steps {
		for i := range s.path {
			if dir := s.path[:i]; s.path[i] == '/' && !slices.Contains(list, dir) {
				if _, err := w.root.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
					list = append(list, dir)
				}
			}
		}
	}
	return list
}

// write makes the edits. If one fails, those before it are taken back.
func (w *writer) write(id string) (err error) {
	defer func() {
		for _, s := range w.steps {
			if s.tmp != "" {
				_ = s.dir.Remove(s.tmp)
			}
		}
	}()
	for _, s := range w.steps {
		if err = w.stage(s); err != nil {
			break
		}
	}
	for i := 0; err == nil && i < len(w.steps); i++ {
		if err = w.steps[i].change(); err != nil {
			err = &ConflictError{id, []string{w.steps[i].path + ": " + err.Error()}}
		}
	}
	if err == nil {
		return nil
	}
	for _, s := range slices.Backward(w.steps) {
		if e := s.back(); e != nil {
			err = fmt.Errorf("%w; %s: %w: %w%s", err, s.path, errHalf, e, s.rescue())
		}
	}
	for _, dir := range slices.Backward(w.made) {
		if st, e := w.root.Lstat(dir); e == nil && st.IsDir() {
			_ = w.root.Remove(dir) // fails if it is no longer empty
		}
	}
	return err
}

// folder opens the folder of a path, and makes what is missing.
func (w *writer) folder(dir string) (*os.Root, error) {
	if known := w.dirs[dir]; known != nil {
		return known, nil
	}
	above, err := w.folder(path.Dir(dir))
	if err != nil {
		return nil, err
	}
	if _, err := above.Lstat(path.Base(dir)); errors.Is(err, fs.ErrNotExist) {
		w.made = append(w.made, dir)
	}
	w.dirs[dir], err = export.Enter(above, path.Base(dir))
	if err != nil {
		delete(w.dirs, dir)
	}
	return w.dirs[dir], err
}

// stage writes the new text beside the file.
func (w *writer) stage(s *step) (err error) {
	if s.dir, err = w.folder(path.Dir(s.path)); err != nil || s.to == "" {
		return err
	}
	from, err := os.Open(s.text)
	if err != nil {
		return err
	}
	defer from.Close()
	mode := s.mode
	if s.old != nil {
		mode = 0o600 // until it has the old file's owner and permissions
	}
	if s.tmp, s.new, err = export.PartialFile(s.dir, mode); err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(s.new, sum), from)
	if digestPrefix+hex.EncodeToString(sum.Sum(nil)) != s.to {
		err = errors.Join(err, errors.New("its stored text is damaged"))
	}
	if s.old != nil {
		if e := own(s.new, s.st); e == nil {
			err = errors.Join(err, setRights(s.old, s.new, s.st.Mode().Perm()))
		} else {
			err = errors.Join(err, e)
		}
	}
	err = errors.Join(err, s.new.Sync())
	if s.made, _ = s.new.Stat(); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}

// ErrKind means that a path leads to something else than a file.
var ErrKind = errors.New("what is there can't be changed")

// OpenFile opens the file of a path; nil if there is none. The error says why the path can't be changed.
func OpenFile(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	dir := root
	for part := range strings.SplitSeq(path.Dir(name), "/") {
		if part == "." {
			continue
		}
		sub, err := export.Descend(dir, part)
		if dir != root {
			dir.Close()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrKind, err)
		}
		dir = sub
	}
	if dir != root {
		defer dir.Close()
	}
	base := path.Base(name)
	there, err := dir.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	case !there.Mode().IsRegular():
		return nil, nil, fmt.Errorf("%w: it is not a regular file", ErrKind)
	}
	f, err := dir.OpenFile(base, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !os.SameFile(st, there) {
		err = errors.New("it was exchanged meanwhile")
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// DigestOf hashes a file from its beginning, which may be one byte longer than a set's files.
func DigestOf(f *os.File) (string, error) {
	sum := sha256.New()
	_, err := io.Copy(sum, io.NewSectionReader(f, 0, maxFileBytes+1))
	return digestPrefix + hex.EncodeToString(sum.Sum(nil)), err
}

// removeEmpty removes folders that are empty, inner ones first.
func removeEmpty(dir string, folders []string) error {
	root, err := OpenDir(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range slices.Backward(folders) {
		if st, err := root.Lstat(name); err == nil && st.IsDir() {
			_ = root.Remove(name)
		}
	}
	return nil
}
