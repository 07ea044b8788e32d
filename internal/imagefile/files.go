package imagefile

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// nonblock prevents that a pipe in a file's place blocks the open.
const nonblock = syscall.O_NONBLOCK

// WriteTo writes an environment's files to a tar stream, by their paths in the guest. It refuses links, because their
// targets are not in the description.
func (e *Environment) WriteTo(to *tar.Writer) error {
	for _, f := range e.Files {
		if err := f.write(to); err != nil {
			return fmt.Errorf("%s: files: %s: %w", e.File, path.Join(f.Dir, f.Host), err)
		}
	}
	return nil
}

func (f File) write(to *tar.Writer) error {
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for at := f.Host; at != "."; at = path.Dir(at) {
		if st, err := root.Lstat(at); err != nil {
			return plain(err)
		} else if st.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a link", at)
		}
	}
	return fs.WalkDir(root.FS(), f.Host, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return plain(err)
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is neither a file nor a folder", name)
		}
		return copyFile(to, root, name, path.Join(f.Guest, strings.TrimPrefix("/"+name, path.Join("/", f.Host))))
	})
}

func copyFile(to *tar.Writer, root *os.Root, name, guest string) error {
	in, err := root.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return plain(err)
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a folder", name)
	}
	if !strings.Contains(guest[1:], "/") {
		return fmt.Errorf("%s would lie at the root as %s: give it a folder", name, guest)
	}
	mode := int64(0o644) // not the host's mode, which may exclude others (umask)
	if st.Mode()&0o100 != 0 {
		mode = 0o755
	}
	if err := to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: guest[1:], Mode: mode, Size: st.Size(),
		ModTime: st.ModTime(), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.CopyN(to, in, st.Size())
	if err == io.EOF {
		err = fmt.Errorf("%s became shorter while it was read", name)
	}
	return err
}

// plain returns an error without the operation, which is always the same here.
func plain(err error) error {
	if wrapped, ok := err.(*fs.PathError); ok {
		return fmt.Errorf("%s: %w", wrapped.Path, wrapped.Err)
	}
	return err
}

// WriteRoot writes a folder's files and links to a tar stream, with the folder as the guest's root.
func WriteRoot(to *tar.Writer, folder string) error { return WriteFolder(to, folder, "/") }

// WriteFolder writes a folder's files and links to a tar stream, below a path in the guest.
func WriteFolder(to *tar.Writer, folder, guest string) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		at := path.Join(guest, name)
		switch {
		case err != nil || d.IsDir():
			return plain(err)
		case d.Type() != fs.ModeSymlink:
			return copyFile(to, root, name, at)
		}
		target, err := root.Readlink(name)
		if err != nil {
			return plain(err)
		}
		return to.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: at[1:], Linkname: target, Format: tar.FormatPAX})
	})
}
