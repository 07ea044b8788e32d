package testlack

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// Disk mounts a new disk on a folder until the test ends. Options are tmpfs', as "size=1m". It skips the test if
// mounting is not possible.
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

// Grow changes the options of such a disk.
func Grow(t *testing.T, dir, options string) {
	t.Helper()
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, options); err != nil {
		t.Fatal(err)
	}
}

// FullDisk returns a full disk. It contains a folder with a file, and nothing more can be created.
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
