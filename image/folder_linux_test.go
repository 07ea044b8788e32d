package image

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// fullDisk mounts a disk on which nothing more can be made once a folder, with a file in it, is.
func fullDisk(t *testing.T, folder string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,nr_inodes=4,mode=700"); err != nil {
		t.Skipf("a small disk can't be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, folder), 0o700), os.WriteFile(filepath.Join(dir, folder, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "more"), 0o700); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	return dir
}

// A full disk is no obstacle to what makes room on it.
func TestRemoveOnFullDisk(t *testing.T) {
	s := &Store{home: fullDisk(t, "images/aa"), log: func(string) {}}
	if digest, err := s.Remove("aa"); err != nil || digest != "aa" {
		t.Errorf("%q %v", digest, err)
	}
	if left, err := os.ReadDir(s.imagesDir()); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}
