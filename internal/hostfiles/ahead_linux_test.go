package hostfiles

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Folders that are listed in advance come in order, and none stays open, even if the walk ends early.
func TestListedAhead(t *testing.T) {
	dir := t.TempDir()
	for i := range 40 {
		for j := range 3 {
			below := filepath.Join(dir, fmt.Sprintf("a%d/b%d", i, j))
			if err := os.MkdirAll(below, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(below, "f"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	walk := func() ([]string, error) {
		f, err := Find(dir, true)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var s Set
		defer s.Close()
		err = s.Add(f, "/d", math.MaxInt64)
		var list []string
		for _, e := range s.entries {
			list = append(list, e.Path)
		}
		return list, err
	}
	before := open()
	list, err := walk()
	if err != nil || len(list) != 1+40+40*3*2 {
		t.Fatalf("%d entries, %v", len(list), err)
	}
	for i, p := range list[1:] { // the contents of a folder follow it at once
		if up := filepath.Dir(p); up != list[i] && !strings.HasPrefix(list[i], up+"/") {
			t.Errorf("%s follows %s", p, list[i])
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "a7/b1/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := walk(); err == nil || !strings.Contains(err.Error(), "a7/b1/pipe") {
		t.Errorf("a pipe: %v", err)
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}
