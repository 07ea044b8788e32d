package hostfiles

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest"
)

// walk lists a folder.
type walk struct {
	set     *Set
	m       *mount
	used    int64
	matched int // bytes of patterns that were compared
	read    int // bytes of files of patterns that were read
}

// folder lists a folder at a guest path; parts are the path's parts below the mount. Names in the folder are looked up
// from there, in one step.
func (w *walk) folder(from listing, at string, parts []string, ignore ignored) error {
	defer from.close()
	rel, here := w.m.rel(at), from.root
	if len(parts) > maxDepth {
		return fmt.Errorf("%q lies more than %d folders deep", rel, maxDepth)
	}
	w.set.entries = append(w.set.entries, entry{File: guest.File{Path: at, Mode: fs.ModeDir | 0o755}})
	ignore, err := w.applying(here, rel, parts, ignore)
	if err != nil {
		return err
	}
	for list, err := from.list, from.err; ; list, err = from.dir.ReadDir(listAtOnce) {
		if e := w.entries(here, list, at, parts, ignore); e != nil {
			return e
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%q: %w", rel, plain(err))
		}
	}
}

// entries lists some entries of the folder here, at a guest path; parts are the folder's.
func (w *walk) entries(here *os.Root, list []fs.DirEntry, at string, parts []string, ignore ignored) error {
	var folders []string
	kept := list[:0]
	for _, e := range list {
		out, err := w.leaves(parts, e.Name(), e.IsDir(), ignore)
		if err != nil {
			return err
		}
		if out {
			continue
		}
		if kept = append(kept, e); e.IsDir() {
			folders = append(folders, e.Name())
		}
	}
	ahead := listAhead(here, folders)
	defer ahead.close()
	for _, e := range kept {
		if err := w.entry(here, e, under(at, e.Name()), parts, ignore, ahead); err != nil {
			return err
		}
	}
	return nil
}

// entry lists an entry of a folder, for a guest path; parts are the folder's. Folders come from the listing ahead.
func (w *walk) entry(here *os.Root, e fs.DirEntry, to string, parts []string, ignore ignored, ahead *ahead) error {
	rel := w.m.rel(to)
	if len(w.set.entries) >= maxInputs {
		return fmt.Errorf("has more than %d files: %s names what is not needed", maxInputs, IgnoreFile)
	}
	st, err := e.Info() // from the listing: for a folder that a Root opened, nothing is looked up
	if err != nil {
		return fmt.Errorf("%q: %w", rel, plain(err))
	}
	if len(to) > MaxPath {
		return fmt.Errorf("%.80q…: its path inside has more than %d bytes", rel, MaxPath)
	}
	switch st.Mode().Type() {
	case 0:
		w.used = sum(w.used, st.Size())
		w.set.add(w.m, to, st)
	case fs.ModeDir:
		below := ahead.next(e.Name())
		if below.root == nil {
			return fmt.Errorf("%q: %w", rel, plain(below.err))
		}
		return w.folder(below, to, append(slices.Clip(parts), e.Name()), ignore)
	case fs.ModeSymlink:
		target, err := w.link(rel)
		if err != nil {
			return fmt.Errorf("%q is a link that %w: %s can leave it out", rel, err, IgnoreFile)
		}
		w.set.entries = append(w.set.entries, entry{File: guest.File{Path: to, Mode: fs.ModeSymlink, Target: target}})
	default:
		return fmt.Errorf("%q is a %s, which can't be given: %s can leave it out", rel, KindOf(st.Mode()), IgnoreFile)
	}
	return nil
}

// under is path.Join of a clean absolute path and a name.
func under(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

// rel returns a guest path relative to the mount.
func (m *mount) rel(at string) string {
	rest := strings.TrimPrefix(strings.TrimPrefix(at, m.guest), "/")
	return cmp.Or(rest, ".")
}

// link returns a link's target for the guest, if the link stays inside the mount.
func (w *walk) link(rel string) (string, error) {
	target, err := w.m.root.Readlink(rel)
	if err != nil {
		return "", plain(err)
	}
	if len(target) > MaxPath {
		return "", errors.New("is too long")
	}
	inside, where := target, path.Join(path.Dir(rel), target)
	if filepath.IsAbs(target) { // the same place inside, where the folder may have another path
		where = ".."
		for _, base := range []string{w.m.host, w.m.real} {
			if within(base, path.Clean(target)) {
				where, _ = filepath.Rel(base, path.Clean(target))
				inside = path.Join(w.m.guest, where)
			}
		}
	}
	if !filepath.IsLocal(where) {
		return "", fmt.Errorf("leads out of the folder, to %.200q", target)
	}
	if _, err := w.m.root.Stat(where); err != nil && !errors.Is(err, fs.ErrNotExist) { // through another link
		return "", fmt.Errorf("leads to %.200q: %w", target, plain(err))
	}
	return inside, nil
}
