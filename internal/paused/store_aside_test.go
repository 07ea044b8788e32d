package paused

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// If a pause was killed after it moved a session's folder aside, the session is listed once.
func TestStoreAside(t *testing.T) {
	s := Open(t.TempDir())
	for _, name := range []string{"b", ".a.before", ".b.before", ".c.pausing-1", ".before"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if ids, err := s.IDs(); err != nil || !slices.Equal(ids, []string{"a", "b"}) {
		t.Errorf("%q %v", ids, err)
	}
}
