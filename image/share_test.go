package image

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Several images share the files of kernel and initramfs, which count once.
func TestImagesShare(t *testing.T) {
	first, second := severalStore(t)
	a, err := first.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	alone := a.Size()
	b, err := second.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	stat := func(im *Image, name string) os.FileInfo {
		t.Helper()
		st, err := os.Stat(im.Path(name))
		must(t, err)
		return st
	}
	for _, name := range []string{KernelFile, InitrdFile} {
		if !os.SameFile(stat(a, name), stat(b, name)) {
			t.Errorf("each has a %s of its own", name)
		}
	}
	if os.SameFile(stat(a, DiskFile), stat(b, DiskFile)) {
		t.Error("one disk for both")
	}
	if a.Size() >= alone {
		t.Errorf("%d bytes alone, %d when shared", alone, a.Size())
	}
	// Sharing reads neither again, and each stays complete when the other is removed.
	again, err := first.describe(a.Digest)
	must(t, err)
	for _, f := range again.Files {
		if f.Stamp != changeStamp(stat(a, f.Name)) {
			t.Errorf("%s would be read again", f.Name)
		}
	}
	if _, err := first.Remove(a.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Lookup(Linux, HostArch()); err != nil {
		t.Error(err)
	}
	// A damaged file is not shared.
	kernel := b.Path(KernelFile)
	must(t, os.Chmod(kernel, 0o600))
	must(t, os.WriteFile(kernel, bytes.Repeat([]byte("x"), int(stat(b, KernelFile).Size())), 0o600))
	if a, err = first.Ensure(t.Context(), Linux, HostArch()); err != nil ||
		os.SameFile(stat(a, KernelFile), stat(b, KernelFile)) {
		t.Errorf("%v, or it has the damaged one", err)
	}
}

func TestWriteSparse(t *testing.T) {
	for _, data := range [][]byte{
		nil, []byte("x"), make([]byte, 10000), bytes.Repeat([]byte("ab"), 5000),
		append(append(bytes.Repeat([]byte("a"), 4097), make([]byte, 3<<20)...), 'z'),
		append([]byte("x"), make([]byte, 8191)...),
	} {
		name := filepath.Join(t.TempDir(), "f")
		must(t, writeSparse(name, data, 0o600))
		got, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d: %v", len(got), len(data), err)
		}
		if st, _ := os.Stat(name); len(data) > 1<<20 && allocated(st) > 1<<20 {
			t.Errorf("%d bytes on the disk", allocated(st))
		}
	}
}
