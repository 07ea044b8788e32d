package unitask_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask"
)

// A disk that is full in the middle of an image leaves nothing of it.
func TestImportOnFullDisk(t *testing.T) {
	needVM(t) // whose parts the image is made of
	home := t.TempDir()
	if err := syscall.Mount("tmpfs", home, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("a small disk can't be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(home, 0); err != nil {
			t.Error(err)
		}
	})
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	_, err = rt.ImportImage(t.Context(), boxImage(t, "test/box:1", nil), "", "")
	if err == nil || !strings.Contains(err.Error(), "no space left on device") || !strings.Contains(err.Error(), "image.tar") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(home, "containers")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
