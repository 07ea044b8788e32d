package policy

import (
	"os"
	"path/filepath"
	"testing"
)

// The built-in ceiling has no tool for the host's files; a file that widens it must be trusted.
func TestHostFilesOff(t *testing.T) {
	dir := t.TempDir()
	builtIn := BuiltIn(dir, filepath.Join(dir, "none"))
	var none *Ceiling
	for name, c := range map[string]*Ceiling{"none": none, "built in": builtIn, "empty": {}} {
		if _, _, ok := c.WriteFolder(filepath.Join(dir, "f")); ok || c.ReadsHostFiles() || c.WritesHostFiles() ||
			c.ReadsHostFile(filepath.Join(dir, "f")) || c.ListsHostFolder(dir) {
			t.Errorf("%s: it allows the host's files", name)
		}
	}
	t.Chdir(dir)
	for _, text := range []string{"hostFiles = true", `writeUnder = ["."]`} {
		file := ceiling(t, text)
		narrowed := builtIn.NarrowedBy(file)
		if beyond := file.Beyond(builtIn); len(beyond) != 1 || narrowed.ReadsHostFiles() || narrowed.WritesHostFiles() {
			t.Errorf("%s: beyond %v, reads %v, writes %v", text, beyond, narrowed.ReadsHostFiles(), narrowed.WritesHostFiles())
		}
		trusted := builtIn.With(file)
		if trusted.ReadsHostFiles() == trusted.WritesHostFiles() {
			t.Errorf("%s, trusted: reads and writes are both %v", text, trusted.ReadsHostFiles())
		}
	}
}

// Each ceiling of a chain must hold a file, and only the lowest one names folders and files.
func TestWriteFolder(t *testing.T) {
	dir := realDir(t)
	for _, sub := range []string{"src/.github", "src/deep", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "src/Makefile"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	base := ceiling(t, `writeUnder = ["src", "src/Makefile"]`)
	greedy := base.NarrowedBy(ceiling(t, `writeUnder = ["src", "src/.github", "src/deep/new.txt", "other"]`))
	for _, c := range []struct {
		name      string
		ceiling   *Ceiling
		file, dir string
		named, ok bool
	}{
		{"below", base, "src/deep/new.txt", "src", false, true},
		{"named", base, "src/Makefile", "src", true, true},
		{"beside", base, "srcs/f", "", false, false},
		{"another folder", greedy, "other/f", "", false, false},
		{"a narrowing file's folder", greedy, "src/.github/f", "src", false, true},
		{"a narrowing file's file", greedy, "src/deep/new.txt", "src", false, true},
		{"named above", greedy, "src/Makefile", "src", true, true},
		{"nothing is left", base.NarrowedBy(ceiling(t, "writeUnder = []")), "src/f", "", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := c.dir
			if want != "" {
				want = filepath.Join(dir, want)
			}
			got, named, ok := c.ceiling.WriteFolder(filepath.Join(dir, c.file))
			if got != want || named != c.named || ok != c.ok {
				t.Errorf("got %q, named %v, ok %v, want %q, %v, %v", got, named, ok, want, c.named, c.ok)
			}
		})
	}
}

// Reading needs the switch and the folders.
func TestReadsHostFile(t *testing.T) {
	dir := realDir(t)
	t.Chdir(dir)
	for text, want := range map[string]bool{
		"hostFiles = true\nfilesUnder = [\".\"]":  true,
		"hostFiles = true\ndirsUnder = [\".\"]":   false,
		"hostFiles = true":                        false,
		"filesUnder = [\".\"]":                    false,
		"hostFiles = false\nfilesUnder = [\".\"]": false,
	} {
		if got := ceiling(t, text).ReadsHostFile(filepath.Join(dir, "f")); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	both := ceiling(t, "hostFiles = true\nfilesUnder = [\".\"]").NarrowedBy(ceiling(t, "hostFiles = false"))
	if both.ReadsHostFile(filepath.Join(dir, "f")) {
		t.Error("a narrowing file forbids it, and it is allowed")
	}
}

func realDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
