package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
	if err := Fill(name, 0o600, func(f *os.File) error { _, _ = f.WriteString("half"); return bad }); !errors.Is(err,
		bad) {
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

// A folder moves in one step, and stays in place if there is no room for another name.
func TestSetAside(t *testing.T) {
	defer func(r func(from, to string) error) { rename = r }(rename)
	dir := t.TempDir()
	place := filepath.Join(dir, "place")
	if err := os.MkdirAll(filepath.Join(place, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		rename = func(from, to string) error { return &os.LinkError{Op: "rename", Old: from, New: to, Err: full} }
		if at, err := SetAside(place, ".gone-"); err != nil || at != place {
			t.Errorf("%v: %q %v", full, at, err)
		}
	}
	rename = os.Rename
	at, err := SetAside(place, ".gone-")
	if _, there := os.Stat(filepath.Join(at, "sub")); err != nil || there != nil || filepath.Dir(at) != dir ||
		!strings.HasPrefix(filepath.Base(at), ".gone-") {
		t.Errorf("%q %v %v", at, err, there)
	}
	if at, err := SetAside(place, ".gone-"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is not there: %q %v", at, err)
	}
}
