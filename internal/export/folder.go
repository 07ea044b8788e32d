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

// Folder is a user's folder that receives exported files. It stays the same folder even if another one replaces it at
// its path. Its methods are for one goroutine.
type Folder struct {
	root    *os.Root
	replace bool
	fresh   bool // it was empty
	made    []madeFile
	swept   map[string]bool // its subfolders that were cleared of killed copies' remains
}

// madeFile is a copy, by its name and its identity in the file system.
type madeFile struct {
	name string
	info fs.FileInfo
}

// Open opens a folder, before the code whose files it receives runs. With replace, an existing file is replaced, and so
// is a link, which is never followed.
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

// empty reports whether the folder is empty.
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

// Close closes the folder.
func (f *Folder) Close() error { return f.root.Close() }

// File exports one file: name has slashes and was checked by record.BadName. reason explains why the file was left out;
// the error is that of a write. In both cases nothing of the file remains.
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
		sub, err := Enter(dir, part)
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

// put creates a file in dir, which gets its name when it is complete.
func (f *Folder) put(dir *os.Root, base, name string, from io.Reader) (reason string, err error) {
	if reason := f.taken(dir, base); reason != "" {
		return reason, nil
	}
	tmp, to, err := PartialFile(dir, 0o644)
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

// name gives a complete file its name, which must be free unless files are replaced.
func (f *Folder) name(dir *os.Root, tmp, base string) error {
	if f.replace {
		return dir.Rename(tmp, base)
	}
	return atomicfile.Place(dir, tmp, base)
}

// taken returns why a name is not free, "" if it is.
func (f *Folder) taken(dir *os.Root, base string) string {
	there, err := dir.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		return plain(err).Error()
	}
	// Only the file system knows whether two names are the same: it may ignore case, or Unicode's forms.
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

// Enter opens the subfolder name of dir, and creates it if it is missing. It never follows a link, even one that
// replaces the folder meanwhile.
func Enter(dir *os.Root, name string) (*os.Root, error) {
	if err := dir.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return Descend(dir, name)
}

// Descend is Enter for a subfolder that exists.
func Descend(dir *os.Root, name string) (*os.Root, error) {
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
