package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/image/oci"
)

// A process that fills a folder keeps it, however long that takes.
func TestSweepHeld(t *testing.T) {
	beside := t.TempDir()
	dir, done, err := newFolder(beside)
	must(t, err)
	long := time.Now().Add(-2 * sweepAge)
	must(t, os.Chtimes(dir, long, long))
	sweepFolder(beside)
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("what is being filled was swept: %v", err)
	}
	done()
	if left, err := os.ReadDir(beside); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// Leftovers of a killed removal do not prevent the next build of an image.
func TestHalfAnImage(t *testing.T) {
	s := fakeStore(t)
	im, err := s.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	must(t, os.Remove(filepath.Join(im.dir, imageFile)))
	again, err := s.Ensure(t.Context(), Linux, HostArch())
	if err != nil || again.Digest != im.Digest {
		t.Fatalf("%+v %v", again, err)
	}
	if _, err := s.Remove(im.Digest); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(s.imagesDir()); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// A container image without a readable description does not prevent the build either.
func TestHalfAContainer(t *testing.T) {
	layer := make([]byte, 1024) // an empty archive
	dir := t.TempDir()
	for name, text := range map[string]string{
		"manifest.json": `[{"Config":"c","Layers":["l"]}]`, "l": string(layer),
		"c": fmt.Sprintf(`{"os":"linux","rootfs":{"diff_ids":["sha256:%x"]}}`, sha256.Sum256(layer)),
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	s := &Store{home: t.TempDir(), log: func(string) {}}
	add := func() (*Container, error) {
		im, err := oci.Open(t.Context(), dir, "amd64")
		must(t, err)
		defer im.Close()
		return s.Containers().Add(t.Context(), AMD64, im, Pulled, []string{"docker.io/acme/tool:1"})
	}
	c, err := add()
	must(t, err)
	file := filepath.Join(c.dir, containerFile)
	for name, damage := range map[string]func() error{
		"cut":     func() error { return os.Truncate(file, 3) },
		"missing": func() error { return os.Remove(file) },
	} {
		must(t, damage())
		if again, err := add(); err != nil || again.Digest != c.Digest {
			t.Errorf("%s: %+v %v", name, again, err)
		}
		if got, err := s.Containers().Get(AMD64, "docker.io/acme/tool:1"); err != nil || got.Digest != c.Digest {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
	// An image that can't be read now is not damaged, and stays.
	must(t, os.Remove(file))
	must(t, os.Mkdir(file, 0o700))
	if _, err := add(); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(c.Root()); err != nil {
		t.Error(err)
	}
}

// Leftovers of a process that was killed while it fetched parts are removed by the next one with their lock.
func TestVendorLeftBehind(t *testing.T) {
	s := fakeStore(t)
	before, err := os.ReadDir(s.vendorDir(HostArch()))
	must(t, err)
	for _, name := range []string{".new-1", ".new-1.old", ".fetch-2", ".bundle-3"} {
		must(t, os.MkdirAll(filepath.Join(s.vendorDir(HostArch()), name, "root"), 0o700))
	}
	if _, err := s.Parts().VendorFrom(t.Context(), HostArch(), t.TempDir()); err == nil {
		t.Error("took an empty folder")
	}
	after, err := os.ReadDir(s.vendorDir(HostArch()))
	if err != nil || len(after) != len(before) {
		t.Errorf("%v %v, %v before", after, err, before)
	}
}
