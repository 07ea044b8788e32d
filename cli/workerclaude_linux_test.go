package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWorkerClaude starts a script in the worker's place: it gets the arguments, and its exit code is unitask's.
func TestWorkerClaude(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	if code, _, errs := said(t, "worker", "claude", "--environment", "e"); code != 2 ||
		!strings.Contains(errs, "make worker-claude") {
		t.Errorf("no program: got %d, %q", code, errs)
	}
	script := "#!/bin/sh\nshift 2\necho \"$@\"\nexit 5\n"
	if err := os.WriteFile(filepath.Join(dir, claudeWorker), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	code, out, _ := said(t, "worker", "claude", "--environment", "e", "--", "--project", "--help")
	if want := "--sessions 1 --environment e -- --project --help\n"; code != 5 || out != want {
		t.Errorf("got %d, %q, want 5, %q", code, out, want)
	}
	if code, out, _ := said(t, "worker", "claude", "--help"); code != 0 || !strings.Contains(out, "Managed Agents") {
		t.Errorf("help: got %d, %q", code, out)
	}
}
