package tfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/filesystem"
)

// all reads everything in a filesystem.
func all(f fs.FS) error {
	return fs.WalkDir(f, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() != 0 {
			return err
		}
		h, err := f.Open(name)
		if err != nil {
			return err
		}
		defer h.Close()
		_, err = io.CopyN(io.Discard, h, 1<<20)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
}

// An image with any changed byte is read or refused, and has no other effect.
func TestDamage(t *testing.T) {
	const size = 1 << 20
	d := disk(t, size)
	w, err := Create(d, size, 0, params)
	must(t, err)
	must(t, w.Mkdir("a/b"))
	put(t, w, "a/b/c", noise(3000))
	must(t, w.Symlink("x", "a/l"))
	must(t, w.Close())
	good := make([]byte, size)
	_, err = d.ReadAt(good, 0)
	must(t, err)
	used := len(bytes.TrimRight(good[:16<<10], "\x00"))
	refused := 0
	for at := range used {
		for _, value := range []byte{0, 1, 0x7f, 0x80, 0xff, good[at] ^ 1, good[at] ^ 0x10} {
			image := bytes.Clone(good)
			image[at] = value
			r, err := Read(memory{nil, bytes.NewReader(image)}, size, 0)
			if err != nil {
				refused++
				continue
			}
			_ = all(r)
		}
	}
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}

var errDisk = errors.New("the disk has failed")

// failing is a disk that fails after some operations.
type failing struct {
	backend.Storage
	left *int
}

func (f failing) op() error {
	if *f.left--; *f.left < 0 {
		return errDisk
	}
	return nil
}

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if err := f.op(); err != nil {
		return 0, err
	}
	return f.Storage.ReadAt(p, off)
}

func (f failing) Writable() (backend.WritableFile, error) {
	if err := f.op(); err != nil {
		return nil, err
	}
	w, err := f.Storage.Writable()
	return failingFile{w, f}, err
}

type failingFile struct {
	backend.WritableFile
	f failing
}

func (w failingFile) ReadAt(p []byte, off int64) (int, error) { return w.f.ReadAt(p, off) }

func (w failingFile) WriteAt(p []byte, off int64) (int, error) {
	if err := w.f.op(); err != nil {
		return 0, err
	}
	return w.WritableFile.WriteAt(p, off)
}

// A disk that fails at any operation causes an error, in writing and in reading.
func TestFailingDisk(t *testing.T) {
	work := func(d backend.Storage) error {
		w, err := Create(d, 1<<20, 0, params)
		if err != nil {
			return err
		}
		h, err := w.OpenFile("file", os.O_CREATE|os.O_RDWR)
		if err != nil {
			return err
		}
		if _, err := h.Write(noise(3000)); err != nil {
			return err
		}
		if err := errors.Join(h.Close(), w.Mkdir("d"), w.Symlink("x", "d/l"), w.Close()); err != nil {
			return err
		}
		r, err := Read(d, 1<<20, 0)
		if err != nil {
			return err
		}
		return all(r)
	}
	for n := 0; ; n++ {
		left := n
		err := work(failing{disk(t, 1<<20), &left})
		if err == nil && left >= 0 {
			if n < 5 {
				t.Errorf("all of it took %d operations", n)
			}
			return
		}
		if !errors.Is(err, errDisk) {
			t.Fatalf("operation %d failed, and it says %v", n, err)
		}
	}
}

// Features that TFS lacks, and invalid names, are refused.
func TestRefused(t *testing.T) {
	w, err := Create(disk(t, 1<<20), 1<<20, 0, params)
	must(t, err)
	must(t, w.Mkdir("d"))
	put(t, w, "file", []byte("x"))
	must(t, w.SetLabel("new"))
	if w.Label() != "new" || w.Type() != Type {
		t.Errorf("label %q, type %#x", w.Label(), int(w.Type()))
	}
	now := time.Now()
	open := func(name string) error {
		h, err := w.OpenFile(name, os.O_RDONLY)
		if err == nil {
			_, err = h.Read(make([]byte, 1))
		}
		return err
	}
	readDir := func(name string) error { _, err := w.ReadDir(name); return err }
	stat := func(name string) error { _, err := w.Stat(name); return err }
	readlink := func(name string) error { _, err := w.Readlink(name); return err }
	for what, c := range map[string]struct{ err, want error }{
		"mknod":                  {w.Mknod("x", 0, 0), filesystem.ErrNotSupported},
		"link":                   {w.Link("file", "x"), filesystem.ErrNotSupported},
		"rename":                 {w.Rename("file", "x"), filesystem.ErrNotSupported},
		"remove":                 {w.Remove("file"), filesystem.ErrNotSupported},
		"times":                  {w.Chtimes("file", now, now, now), filesystem.ErrNotSupported},
		"permissions":            {w.Chmod("file", 0o600), nil},
		"an owner":               {w.Chown("file", 1, 1), nil},
		"open nothing":           {open("none"), fs.ErrNotExist},
		"list nothing":           {readDir("none"), fs.ErrNotExist},
		"list above":             {readDir("../x"), fs.ErrInvalid},
		"describe nothing":       {stat("none"), fs.ErrNotExist},
		"a file as a link":       {readlink("file"), fs.ErrInvalid},
		"a link of nothing":      {readlink("none"), fs.ErrNotExist},
		"a link to nothing":      {w.Symlink("", "l"), fs.ErrInvalid},
		"a folder twice":         {w.Mkdir("d"), nil},
		"a name with a NUL":      {w.Mkdir("a\x00b"), fs.ErrInvalid},
		"a link where a file is": {w.Symlink("x", "file"), fs.ErrExist},
	} {
		if !errors.Is(c.err, c.want) || c.want == nil && c.err != nil {
			t.Errorf("%s: %v, expected %v", what, c.err, c.want)
		}
	}
	for what, err := range map[string]error{
		"a long label": w.SetLabel(fmt.Sprintf("%32d", 1)), "a file as a folder": w.Mkdir("file/x"),
		"list a file": readDir("file"), "read a folder": open("d"),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	must(t, w.Close())
	if err := w.SetLabel("x"); !errors.Is(err, filesystem.ErrReadonlyFilesystem) {
		t.Errorf("a label of what is written: %v", err)
	}
}
