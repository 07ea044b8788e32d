package export

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/unitask/unitask/internal/atomicfile"
)

// Folder is a folder of the user's that files are exported into. It stays the same one whatever takes its
// place meanwhile. Its methods are for one goroutine.
type Folder struct {
	root    *os.Root
	replace bool
	fresh   bool // it had nothing in it
	made    []madeFile
	swept   map[string]bool // folders in it, of what killed copies have left
}

// madeFile is a copy, by its name and by what the file system says it is.
type madeFile struct {
	name string
	info fs.FileInfo
}

// Open opens a folder, before the code runs whose files it gets. With replace a file that is there is
// replaced, and so is a link, which is never followed.
func Open(dir string, replace bool) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	f := &Folder{root: root, replace: replace, swept: map[string]bool{".": true}}
	sweep(root)
	if f.fresh, err = f.empty(); err != nil {
		root.Close()
		return nil, err
	}
	return f, nil
}

// empty says that nothing is in it.
func (f *Folder) empty() (bool, error) {
	d, err := f.root.Open(".")
	if err != nil {
		return false, err
	}
	defer d.Close()
	_, err = d.Readdirnames(1)
	if err == io.EOF {
		return true, nil
	}
	return false, err
}

// Begin is called before the first of a run's files.
func (f *Folder) Begin() {
	if f.fresh {
		f.fresh, _ = f.empty()
	}
}

// Close lets go of the folder.
func (f *Folder) Close() error { return f.root.Close() }

// File exports one file: name has slashes and was checked by record.BadName. reason says why it was left out; the
// error is that of a write. After either nothing of it is there.
func (f *Folder) File(name string, from io.Reader) (reason string, err error) {
	if reason := Barred(name); reason != "" {
		return reason, nil
	}
	if !f.fresh && RunByTools(name) {
		return HeldBack, nil
	}
	dir := f.root
	parts := strings.Split(name, "/")
	for _, part := range parts[:len(parts)-1] {
		sub, err := enter(dir, part)
		if dir != f.root {
			dir.Close()
		}
		if err != nil {
			return plain(err).Error(), nil
		}
		dir = sub
	}
	if dir != f.root {
		defer dir.Close()
	}
	if at := path.Dir(name); !f.swept[at] {
		f.swept[at] = true
		sweep(dir)
	}
	return f.put(dir, path.Base(name), name, from)
}

// put makes a file of a name in dir. It has its name when it is whole.
func (f *Folder) put(dir *os.Root, base, name string, from io.Reader) (reason string, err error) {
	if reason := f.taken(dir, base); reason != "" {
		return reason, nil
	}
	tmp, to, err := partialFile(dir, 0o644)
	if err != nil {
		return plain(err).Error(), nil
	}
	defer to.Close()
	defer dir.Remove(tmp)
	_, err = io.Copy(to, from)
	info, e := to.Stat()
	if err = errors.Join(err, e); err != nil {
		return "", err
	}
	if err = f.name(dir, tmp, base); errors.Is(err, fs.ErrExist) {
		if reason = f.taken(dir, base); reason == "" {
			reason = "exists"
		}
		return reason, nil
	}
	if err == nil {
		f.made = append(f.made, madeFile{name, info})
	}
	return "", err
}

// name gives what was made its name, which must be free unless files are replaced.
func (f *Folder) name(dir *os.Root, tmp, base string) error {
	if f.replace {
		return dir.Rename(tmp, base)
	}
	return atomicfile.Place(dir, tmp, base)
}

// taken says why a name is not free, "" if it is.
func (f *Folder) taken(dir *os.Root, base string) string {
	there, err := dir.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		return plain(err).Error()
	}
	// Whether two names are one is the file system's to say: it may ignore case, or
	// Unicode's forms.
	for _, m := range f.made {
		if os.SameFile(m.info, there) {
			return fmt.Sprintf("the folder's file system takes its name for that of %q, which was copied", m.name)
		}
	}
	switch kind := there.Mode().Type(); {
	case kind != 0 && kind != fs.ModeSymlink:
		return "exists and is not a file"
	case !f.replace:
		return "exists; --out-replace replaces it"
	}
	return ""
}

// enter opens the folder name in dir, which is made if it is missing. A link is not
// followed, also one that takes the folder's place meanwhile.
func enter(dir *os.Root, name string) (*os.Root, error) {
	if err := dir.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	there, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !there.IsDir() {
		return nil, fmt.Errorf("%q is there and is not a folder", name)
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if now, err := sub.Stat("."); err != nil || !os.SameFile(there, now) {
		sub.Close()
		return nil, fmt.Errorf("%q was exchanged meanwhile", name)
	}
	return sub, nil
}

func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
