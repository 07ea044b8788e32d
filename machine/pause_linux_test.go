package machine_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testlack"
	"github.com/unitask/unitask/machine"
)

// A full disk leaves the running machine and the folder unchanged.
func TestPauseFull(t *testing.T) {
	source, spec := lasting(t, image.Linux)
	dir := t.TempDir()
	testlack.Disk(t, dir, "size=20m")
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
	testlack.Grow(t, dir, "size=600m")
	if err := source.Pause(t.Context(), m, filepath.Join(dir, "paused")); err != nil {
		t.Fatal(err)
	}
	if m, err = source.Resume(t.Context(), filepath.Join(dir, "paused"), spec, machine.Config{}); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	runs(t, m)
}
