package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// A folder of the home may be a link to another disk; locks are not sessions.
func TestMeasure(t *testing.T) {
	disk, link := t.TempDir(), filepath.Join(t.TempDir(), "sessions")
	if err := os.Mkdir(filepath.Join(disk, "one"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"one/memory": 1 << 16, "holder.lock": 0} {
		if err := os.WriteFile(filepath.Join(disk, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(disk, link); err != nil {
		t.Fatal(err)
	}
	for folders, items := range map[bool]int{true: 1, false: 2} {
		s := stored{directory: []string{link}, folders: folders}
		if s.measure(); s.Items != items || s.Bytes < 1<<16 {
			t.Errorf("got %d items of %d bytes, want %d of 65536 or more", s.Items, s.Bytes, items)
		}
	}
}
