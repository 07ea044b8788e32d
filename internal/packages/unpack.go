package packages

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"
)

// unpacking is a lock's folder during unpacking.
type unpacking struct {
	lock    *Lock
	root    *os.Root
	all     contents
	folders map[string]bool
	files   map[string]fs.FileMode // the existing ones
}

// unpack fills the lock's folder, and records its contents in the lock.
func (l *Lock) unpack(stream io.Reader) error {
	root, err := os.OpenRoot(l.Folder())
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacking{lock: l, root: root, folders: map[string]bool{".": true}, files: map[string]fs.FileMode{}}
	l.Bytes, l.LeftOut, l.LeftOutMany = 0, nil, 0
	for r, n := tar.NewReader(stream), 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read what was built: %w", err)
		}
		if n >= MaxFiles {
			return fmt.Errorf("has more than %d files", MaxFiles)
		}
		if err := u.entry(h, r); err != nil {
			return err
		}
	}
	if len(u.all) == 0 {
		return errors.New("nothing was installed")
	}
	l.Digest, l.Files, l.Built = u.all.digest(), len(u.all), time.Now().UTC().Truncate(time.Second)
	l.Room = l.Bytes + int64(len(u.all)+len(u.folders))*diskBlock
	return nil
}

// entry unpacks an entry of the archive.
func (u *unpacking) entry(h *tar.Header, content io.Reader) error {
	name := path.Clean(strings.TrimPrefix(h.Name, "./"))
	switch {
	case name == ".":
		return nil
	case !filepath.IsLocal(name) || !plainText(name) || strings.Count(name, "/") > maxDepth:
		return fmt.Errorf("has a file %.80q, whose name can't be", h.Name)
	}
	for dir := path.Dir(name); !u.folders[dir]; dir = path.Dir(dir) {
		if u.folders[dir] = true; len(u.folders) > MaxFiles { // each file may be in its own folder
			return fmt.Errorf("has more than %d folders", MaxFiles)
		}
	}
	switch {
	case h.Typeflag == tar.TypeSymlink:
		return u.link(name, h.Linkname)
	case h.Typeflag == tar.TypeDir || path.Base(name) == ".unitaskignore":
		return nil
	case h.Typeflag == tar.TypeLink:
		return u.copy(name, h)
	case h.Typeflag != tar.TypeReg:
		return fmt.Errorf("has %.80q, which is neither a file nor a folder", h.Name)
	}
	mode := fs.FileMode(0o644)
	if h.Mode&0o100 != 0 {
		mode = 0o755
	}
	return u.file(name, mode, h.Size, h.ModTime, content)
}

// plainText reports whether a path is valid for a link or a file.
func plainText(s string) bool {
	return s != "" && len(s) <= maxPath && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// file puts a file of size bytes into the folder.
func (u *unpacking) file(name string, mode fs.FileMode, size int64, made time.Time, content io.Reader) error {
	// A sparse file is larger than its part of the archive, and may declare any size.
	if u.lock.Bytes += size; size > MaxBytes || u.lock.Bytes > MaxBytes {
		return fmt.Errorf("has more than %d MiB", MaxBytes>>20)
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, sum), content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	if !made.IsZero() {
		if err := u.root.Chtimes(name, made, made); err != nil {
			return err
		}
	}
	u.all.add(name, mode, sum.Sum(nil))
	u.files[name] = mode
	return nil
}

// copy puts another name of an earlier file (a hard link) into the folder, as a copy.
func (u *unpacking) copy(name string, h *tar.Header) error {
	of := path.Clean(strings.TrimPrefix(h.Linkname, "./"))
	mode, there := u.files[of]
	if !there {
		return fmt.Errorf("has %.80q, another name of %.80q, which is no file that came before it", h.Name, h.Linkname)
	}
	f, err := u.root.Open(of)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return u.file(name, mode, st.Size(), st.ModTime(), f)
}

// link puts a link into the folder. Unless the lock allows all links, it omits a link that leads outside, and records
// that.
func (u *unpacking) link(name, target string) error {
	if !plainText(target) {
		return fmt.Errorf("has a link %.80q, which can't be", name)
	}
	if !u.lock.Links && !inside(name, target) {
		if u.lock.LeftOutMany++; len(u.lock.LeftOut) < maxLeftOut {
			u.lock.LeftOut = append(u.lock.LeftOut, name)
		}
		return nil
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := u.root.Symlink(target, name); err != nil {
		return err
	}
	u.all.addLink(name, target)
	return nil
}

// inside reports whether a link stays in the folder. It may first go up, at most to the folder itself, and then only
// down. So it stays inside through any other links.
func inside(name, target string) bool {
	up := 0
	words := strings.Split(target, "/")
	for up < len(words) && words[up] == ".." {
		up++
	}
	for _, w := range words[up:] {
		if w == ".." || w == "" {
			return false
		}
	}
	return up <= strings.Count(name, "/")
}
