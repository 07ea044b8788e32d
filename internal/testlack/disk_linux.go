package testlack

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// Disk mounts a disk of its own on a folder until the test ends. Options are tmpfs', as "size=1m". It skips the test
// where none can be mounted.
func Disk(t *testing.T, dir, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,"+options); err != nil {
		t.Skipf("a small disk can't be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

// Grow gives such a disk other options.
func Grow(t *testing.T, dir, options string) {
	t.Helper()
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, options); err != nil {
		t.Fatal(err)
	}
}

// FullDisk returns a disk on which there is a folder with a file in it, and nothing more can be made.
func FullDisk(t *testing.T, folder string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	Disk(t, dir, "size=64k,nr_inodes=100")
	err := errors.Join(os.MkdirAll(filepath.Join(dir, folder), 0o700),
		os.WriteFile(filepath.Join(dir, folder, "file"), nil, 0o600))
	var st syscall.Statfs_t
	if err = errors.Join(err, syscall.Statfs(dir, &st)); err != nil {
		t.Fatal(err)
	}
	Grow(t, dir, "nr_inodes="+strconv.FormatUint(st.Files-st.Ffree, 10))
	if err := os.Mkdir(filepath.Join(dir, "more"), 0o700); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	return dir
}
