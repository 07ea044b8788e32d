package machine_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/machine"
)

// A disk that is full leaves the machine as it runs, and the folder as it is.
func TestPauseFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts a small disk")
	}
	source, spec := lasting(t, image.Linux)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=20m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH) //nolint:errcheck // the folder goes with the test
	m, err := source.Clone(t.Context(), spec, machine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for range 2 {
		if err := source.Pause(t.Context(), m, filepath.Join(dir, "paused")); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%v", err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=600m"); err != nil {
		t.Fatal(err)
	}
	if err := source.Pause(t.Context(), m, filepath.Join(dir, "paused")); err != nil {
		t.Fatal(err)
	}
	if m, err = source.Resume(t.Context(), filepath.Join(dir, "paused"), spec, machine.Config{}); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	runs(t, m)
}
