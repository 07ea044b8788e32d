package realpath

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// folding is a disk that ignores case, made of one that does not.
func folding() disk {
	var find func(path string) string
	find = func(path string) string {
		if path == "/" {
			return path
		}
		dir := find(filepath.Dir(path))
		for _, n := range names(dir) {
			if strings.EqualFold(n, filepath.Base(path)) {
				return filepath.Join(dir, n)
			}
		}
		return filepath.Join(dir, filepath.Base(path))
	}
	return disk{
		func(path string) (fs.FileInfo, error) { return os.Lstat(find(path)) },
		func(dir string) []string { return names(find(dir)) },
	}
}

func TestStored(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "Case")
	if err := os.MkdirAll(filepath.Join(dir, "Users", "Émile", "Data-1", "1.2"), 0o755); err != nil {
		t.Fatal(err)
	}
	in := func(path string) string { return filepath.Join(dir, path) }
	for _, c := range [][2]string{
		{in("Users/Émile/Data-1/1.2"), in("Users/Émile/Data-1/1.2")},
		{in("users/émile/DATA-1/1.2"), in("Users/Émile/Data-1/1.2")},
		{strings.ToUpper(in("users/éMILE")), in("Users/Émile")},
		{in("users/nobody/Data-1"), in("Users/nobody/Data-1")},
		{"/", "/"},
		{"users/Émile", "users/Émile"}, // does not exist
	} {
		if got := folding().stored(c[0]); got != c[1] {
			t.Errorf("%s: %s, not %s", c[0], got, c[1])
		}
	}
	// A path keeps the case that it is written in if both spellings exist, even as links to one file.
	if err := os.WriteFile(in("a"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(in("a"), in("A")); err != nil {
		t.Skipf("this disk does not tell names apart: %v", err)
	}
	for _, path := range []string{in("a"), in("A"), in("users/Émile"), in("Users")} {
		if got := Stored(path); got != path {
			t.Errorf("%s: %s", path, got)
		}
	}
	if err := os.Symlink(in("Users"), in("link")); err != nil {
		t.Fatal(err)
	}
	if got, err := Of(in("link/Émile")); got != in("Users/Émile") || err != nil {
		t.Errorf("%s %v", got, err)
	}
	if got, err := Of(in("nothing")); got != "" || err == nil {
		t.Errorf("%s %v", got, err)
	}
}

// swapCase changes the case of each letter, and nothing else.
func TestSwapCase(t *testing.T) {
	for name, want := range map[string]string{"Data": "dATA", "é1": "É1", "1.2-_": "1.2-_", "": ""} {
		if got := swapCase(name); got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}
