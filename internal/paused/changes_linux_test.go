package paused

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask/run"
)

// The changes of a session's policy are read as they were stored. An invalid file is an error, and without a file there
// are no changes.
func TestChangesOfPolicyKept(t *testing.T) {
	pauses := Open(t.TempDir())
	const id = "20261124-000000000-aaaaaa"
	name := filepath.Join(pauses.Folder(id), ChangesName)
	kept := []run.PolicyChange{{AllowNet: []string{"a.example"}}, {DenyNet: []string{"b.example"}}}
	if err := pauses.WriteChanges(id, kept); err != nil {
		t.Errorf("of a session that was never paused: %v", err)
	}
	if err := os.MkdirAll(pauses.Folder(id), 0o700); err != nil {
		t.Fatal(err)
	}
	var read []run.PolicyChange
	if err := pauses.ReadChanges(id, &read); err != nil || len(read) != 0 {
		t.Errorf("none: %v %v", read, err)
	}
	if err := pauses.WriteChanges(id, kept); err != nil {
		t.Fatal(err)
	}
	if err := pauses.ReadChanges(id, &read); err != nil || len(read) != 2 || read[1].DenyNet[0] != "b.example" {
		t.Errorf("%v %v", read, err)
	}
	for what, c := range map[string]struct {
		put  func() error
		says string
	}{
		"too much": {func() error {
			return os.WriteFile(name, []byte("["+strings.Repeat(" ", MaxChangesText)+"]"), 0o600)
		}, "more than"},
		"cut":    {func() error { return os.WriteFile(name, []byte(`[{"denyNet":["b`), 0o600) }, "JSON"},
		"a pipe": {func() error { return syscall.Mkfifo(name, 0o600) }, "JSON"},
	} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if err := c.put(); err != nil {
			t.Fatal(err)
		}
		if err := pauses.ReadChanges(id, &read); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
