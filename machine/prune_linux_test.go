package machine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask/internal/testlack"
)

// An entry that can't be removed does not count as removed, and is an error.
func TestPruneFails(t *testing.T) {
	s := OpenTemplates(t.TempDir())
	stuck := filepath.Join(s.dir, digestOf("x"))
	if err := os.MkdirAll(filepath.Join(stuck, "mounted"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stuck, templateName), []byte(`{"key":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // a folder's mode does not keep root from removing
		testlack.Disk(t, filepath.Join(stuck, "mounted"), "size=4k")
	} else if err := os.Chmod(s.dir, 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(s.dir, 0o700) })
	if n, err := s.Prune(0); n != 0 || err == nil {
		t.Errorf("%d removed, %v", n, err)
	}
	if _, err := s.Drop("x"); err == nil {
		t.Error("what can't be dropped is dropped")
	}
}
