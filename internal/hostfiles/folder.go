package hostfiles

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/export"
)

// Folders are copied into machines and out of them as tar. Untrusted code writes the tar of a machine.

// Limits of a copied folder.
const (
	MaxFolderBytes   = 1 << 30 // of its files
	MaxFolderEntries = 100_000
	maxFolderDepth   = 64
)

// MaxFolderArchive bounds its archive, in bytes: a header, a long name and padding for each entry.
const MaxFolderArchive = MaxFolderBytes + MaxFolderEntries*8<<10

// SendFolder packs everything below FolderName, and FolderWhole comes last: without it, the tar was cut off.
const (
	FolderName  = "folder"
	FolderWhole = "whole"
)

// FolderError names the part of a folder that can't be copied.
type FolderError struct{ Name, Reason string }

func (e *FolderError) Error() string { return fmt.Sprintf("%.200q %s", e.Name, e.Reason) }

// counted counts the contents of a folder.
type counted struct {
	entries int
	bytes   int64
}

func (c *counted) add(name string, size int64) error {
	c.entries++
	switch {
	case c.entries > MaxFolderEntries:
		return &FolderError{name, fmt.Sprintf("is one entry more than the %d that a folder may have: copy parts of it",
			MaxFolderEntries)}
	case strings.Count(name, "/") >= maxFolderDepth || len(name) > 4000:
		return &FolderError{name, fmt.Sprintf("lies deeper than %d folders", maxFolderDepth)}
	case size < 0 || size > MaxFolderBytes-c.bytes:
		return &FolderError{name, fmt.Sprintf("makes more than the %d bytes that a folder may have: copy parts of it",
			int64(MaxFolderBytes))}
	}
	c.bytes += size
	return nil
}

// SendFolder passes the tar of a folder to use: files, folders, and links, which are packed unchanged.
func SendFolder(dir string, use func(io.Reader) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(root, w)
		w.CloseWithError(err)
		packed <- err
	}()
	err = use(r)
	r.CloseWithError(io.ErrClosedPipe)
	if e := <-packed; e != nil && !errors.Is(e, io.ErrClosedPipe) {
		return e
	}
	return err
}

func pack(root *os.Root, to io.Writer) error {
	w := tar.NewWriter(to)
	var all counted
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return packOne(root, w, name, &all)
	})
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: FolderWhole, Typeflag: tar.TypeReg, Mode: 0o600})
	}
	if err != nil {
		return err
	}
	return w.Close()
}

func packOne(root *os.Root, w *tar.Writer, name string, all *counted) error {
	st, err := root.Lstat(name)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: path.Join(FolderName, name), Mode: int64(st.Mode().Perm()), ModTime: st.ModTime(),
		Format: tar.FormatPAX}
	switch st.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = root.Readlink(name); err != nil {
			return err
		}
	case 0:
		h.Typeflag, h.Size = tar.TypeReg, st.Size()
	default:
		return &FolderError{name, fmt.Sprintf("is neither a file nor a folder nor a link (%s): leave it out", st.Mode())}
	}
	if err := all.add(name, h.Size); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return w.WriteHeader(h)
	}
	f, err := openRegular(root, name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(w, io.LimitReader(f, h.Size)) // a growing file keeps the size in its header
	if err == nil && n < h.Size {
		err = &FolderError{name, "became shorter while it was read: try again"}
	}
	return err
}

// TakeFolder creates a folder from the tar that fill writes, by the rules of package export. It leaves out names
// that begin with a dot, among others, and returns them in left; no file is executable. The folder appears
// complete, or not at all. It is an error if the name exists, unless it is an empty folder.
func TakeFolder(dir string, fill func(io.Writer) error) (left []export.Left, err error) {
	return takeFolder(dir, false, fill)
}

// takeFolder is TakeFolder; with all, everything is copied unchanged, for another machine.
func takeFolder(dir string, all bool, fill func(io.Writer) error) (left []export.Left, err error) {
	dir = filepath.Clean(dir)
	taken := func() error {
		if list, err := os.ReadDir(dir); err == nil && len(list) == 0 || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return &FolderError{dir, "is there already: give a name that is not taken"}
	}
	if err := taken(); err != nil {
		return nil, err
	}
	tmp, lock, err := export.PartialFolder(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	defer os.RemoveAll(tmp)
	whole := filepath.Join(tmp, "whole")
	if err := os.Mkdir(whole, 0o755); err != nil { // less the bits of the user's umask
		return nil, err
	}
	root, err := os.OpenRoot(whole)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	u := unpacking{root: root, all: all, dirs: map[string]bool{".": true}, files: map[string]bool{}}
	r, w := io.Pipe()
	taking := make(chan error, 1)
	go func() {
		err := u.unpack(r)
		if err == nil {
			_, err = io.Copy(io.Discard, r) // data after the archive's end
		}
		r.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		taking <- err
	}()
	err = fill(w)
	w.CloseWithError(err)
	if e := <-taking; err == nil || errors.As(e, new(*FolderError)) {
		err = e
	}
	if err != nil {
		return nil, err
	}
	if err := taken(); err != nil {
		return nil, err
	}
	if err := os.Rename(whole, dir); err != nil {
		return nil, fmt.Errorf("keep the folder as %s: %w", dir, err)
	}
	return u.list(), nil
}

// PassFolder passes a folder on to another machine. It reads the tar that fill writes like TakeFolder, but leaves
// out nothing and keeps modes (its owner may read all of it). use receives SendFolder's tar of the result.
// Meanwhile the folder is stored in dir.
func PassFolder(dir string, fill func(io.Writer) error, use func(io.Reader) error) error {
	tmp, lock, err := export.PartialFolder(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer os.RemoveAll(tmp)
	folder := filepath.Join(tmp, "folder")
	if _, err := takeFolder(folder, true, fill); err != nil {
		return err
	}
	return SendFolder(folder, use)
}

// unpacking creates the contents of a tar below a folder. Nothing in the tar is trusted: everything it creates is
// new, in folders that it created, and links lead only inside the folder.
type unpacking struct {
	root        *os.Root
	all         bool // nothing is left out
	count       counted
	dirs, files map[string]bool // that were created
	left        []export.Left
	more        int // further names that were left out
}

// leave notes a name that is left out.
func (u *unpacking) leave(name, reason string) {
	if len(u.left) == export.MaxLeft {
		u.more++
		return
	}
	u.left = append(u.left, export.Left{Path: name, Reason: reason})
}

// list returns what was left out.
func (u *unpacking) list() []export.Left {
	if u.more > 0 {
		return append(u.left, export.Left{Path: fmt.Sprintf("%d more", u.more), Reason: "left out, too"})
	}
	return u.left
}

func (u *unpacking) unpack(from io.Reader) error {
	tr := tar.NewReader(from)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the folder's archive is not one: %w", err)
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "./"))
		if !fs.ValidPath(name) || strings.Contains(h.Name, "\x00") {
			return &FolderError{h.Name, "leads out of the folder"}
		}
		size := h.Size
		if h.Typeflag != tar.TypeReg {
			size = 0
		}
		if err := u.count.add(name, size); err != nil {
			return err
		}
		if err := u.one(name, h, tr); err != nil {
			return err
		}
	}
}

// parents creates the folders above a name, and counts each. A folder or link that this unpacking has not created is an
// error.
func (u *unpacking) parents(name string) error {
	dir := path.Dir(name)
	if u.dirs[dir] {
		return nil
	}
	if err := u.parents(dir); err != nil {
		return err
	}
	if err := u.count.add(dir, 0); err != nil {
		return err
	}
	if err := u.dir(dir, 0o755); err != nil {
		return &FolderError{name, "lies in what is no folder of the archive"}
	}
	u.dirs[dir] = true
	return nil
}

func (u *unpacking) one(name string, h *tar.Header, content io.Reader) error {
	if name == "." || u.dirs[name] && h.Typeflag == tar.TypeDir {
		return nil
	}
	mode := fs.FileMode(h.Mode) & 0o777
	if u.all {
		mode |= 0o400 // it is read again
	} else {
		if reason := export.Barred(name); reason != "" {
			u.leave(name, reason)
			return nil
		}
		if h.Typeflag == tar.TypeReg {
			mode &^= 0o111
		}
	}
	if err := u.parents(name); err != nil {
		return err
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(name, mode|0o700)
		u.dirs[name] = err == nil
	case tar.TypeReg:
		err = u.file(name, mode, h.Size, content)
		u.files[name] = err == nil
	case tar.TypeSymlink:
		if !inside(name, h.Linkname) {
			return &FolderError{name, fmt.Sprintf("is a link to %.200q, out of the folder: leave it out", h.Linkname)}
		}
		if !u.all && barredLink(h.Linkname) {
			u.leave(name, "it is a link to what is left out")
			return nil
		}
		err = u.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		to := path.Clean(strings.TrimPrefix(h.Linkname, "./"))
		if !u.all && fs.ValidPath(to) && export.Barred(to) != "" {
			u.leave(name, "it is another name of a file that is left out")
			return nil
		}
		if !u.files[to] {
			return &FolderError{name, fmt.Sprintf("is another name of %.200q, which is no file of the archive", h.Linkname)}
		}
		err = u.root.Link(to, name)
	default:
		return &FolderError{name, "is a device, a pipe or the like: leave it out"}
	}
	if errors.Is(err, fs.ErrExist) {
		return &FolderError{name, "is in the archive twice"}
	}
	return err
}

// barredLink reports whether a link's target is not exported.
func barredLink(target string) bool {
	return slices.ContainsFunc(strings.Split(target, "/"),
		func(part string) bool { return part != "." && part != ".." && export.Barred(part) != "" })
}

// dir creates a folder. The user's umask applies to its mode, unless the archive is copied unchanged.
func (u *unpacking) dir(name string, mode fs.FileMode) error {
	if err := u.root.Mkdir(name, mode); err != nil || !u.all {
		return err
	}
	return u.root.Chmod(name, mode)
}

// file creates a file; its mode is handled as a folder's.
func (u *unpacking) file(name string, mode fs.FileMode, size int64, content io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if u.all {
		if err := f.Chmod(mode); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	n, err := io.CopyN(f, content, size)
	if err == io.EOF && n < size {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, f.Close())
}

// inside reports whether a link stays in the folder: its path first goes up, at most to the folder itself, and
// then only down. So it stays inside whatever links it passes through.
func inside(name, target string) bool {
	if target == "" || path.IsAbs(target) || filepath.IsAbs(target) || len(target) > 4000 ||
		strings.Contains(target, "\x00") {
		return false
	}
	up, depth := 0, strings.Count(name, "/")
	down := false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if up++; down || up > depth {
				return false
			}
		default:
			down = true
		}
	}
	return true
}
