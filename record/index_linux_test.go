package record

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A folder that goes between its opening and its reading is an empty one, and the names of the others are listed.
func TestNamesInGoneFolder(t *testing.T) {
	there, gone := t.TempDir(), filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(gone)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(there, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removed := fmt.Sprintf("/proc/self/fd/%d", f.Fd()) // opening it opens the removed folder
	if _, err := os.ReadDir(removed); err == nil {
		t.Skip("this kernel lists removed folders")
	}
	names, err := namesIn([]string{removed, there, gone}, func(string) bool { return true })
	if err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("%q %v", names, err)
	}
}
