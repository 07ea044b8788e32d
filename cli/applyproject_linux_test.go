package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// apply --delete removes what only the host's folder has: no names that never leave a machine, and no links.
func TestAttackApplyDelete(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	for _, name := range []string{"both", "only", "sub/only", ".git/config", ".env", "sub/.env", "HEAD"} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, "both"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for paths, want := range map[string]string{"": "only sub/only", "sub/only both .env": "sub/only"} {
		files, err := onlyThere(dir, copied, strings.Fields(paths))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range files {
			names = append(names, f.Path)
			if f.Open != nil || f.Named != slices.Contains(strings.Fields(paths), f.Path) {
				t.Errorf("%+v", f)
			}
		}
		attack.Check(t, "apply: --delete "+paths, want, strings.Join(names, " "))
	}
	if _, err := onlyThere("", copied, nil); err == nil {
		t.Error("without --into it would compare the working folder")
	}
}

// Flags of a project that don't fit are mistakes of the command line.
func TestProjectFlags(t *testing.T) {
	t.Setenv("UNITASK_HOME", t.TempDir())
	for _, args := range [][]string{
		{"session", "new", "--mode", "clone"},
		{"session", "new", "--project", "--mode", "link"},
		{"session", "new", "--project", "--fleet", "nats://127.0.0.1:1"},
		{"session", "diff", "x", "--stat", "--json"},
		{"apply", "x", "--delete"},
		{"apply", "x", "--into", "y"},
	} {
		if code, _, errs := said(t, args...); code != 2 {
			t.Errorf("%q: exit code %d: %s", args, code, errs)
		}
	}
}
