package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	check := func(want string, perm os.FileMode) {
		t.Helper()
		text, err := os.ReadFile(name)
		st, e := os.Stat(name)
		if err != nil || e != nil || string(text) != want || st.Mode() != perm {
			t.Errorf("%q %v %v %v", text, st, err, e)
		}
		if list, _ := os.ReadDir(dir); len(list) != 1 {
			t.Errorf("left: %v", list)
		}
	}
	if err := Write(name, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("one", 0o600)
	open, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := Write(name, []byte("two"), 0o644); err != nil {
		t.Fatal(err)
	}
	check("two", 0o644)
	text := make([]byte, 3)
	if _, err := open.Read(text); err != nil || string(text) != "one" {
		t.Errorf("a reader of the old one: %q %v", text, err)
	}
	bad := errors.New("bad")
	if err := Fill(name, 0o600, func(f *os.File) error { _, _ = f.WriteString("half"); return bad }); !errors.Is(err, bad) {
		t.Error(err)
	}
	check("two", 0o644)
	if err := Write(filepath.Join(dir, "no", "f"), nil, 0o600); err == nil {
		t.Error("written where no folder is")
	}
	if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := Write(name, nil, 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("left: %v", list)
	}
}
