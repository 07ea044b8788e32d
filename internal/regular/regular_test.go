package regular

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("file"), []byte("text"), 0o600), os.Symlink("file", at("link")),
		syscall.Mkfifo(at("pipe"), 0o600),
		os.Symlink("pipe", at("to-pipe")), os.Symlink("/dev/random", at("endless")),
		os.Symlink("gone", at("dangling"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"file": nil, "link": nil, "pipe": ErrNot, "to-pipe": ErrNot,
		"endless": ErrNot, ".": ErrNot, "dangling": fs.ErrNotExist, "none": fs.ErrNotExist} {
		if text, err := Read(at(name), 4); !errors.Is(err, want) || want == nil && string(text) != "text" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if text, err := Read(at("file"), 3); err == nil || text != nil || !strings.Contains(err.Error(), "more than 3 bytes") {
		t.Errorf("%q, %v", text, err)
	}
}
