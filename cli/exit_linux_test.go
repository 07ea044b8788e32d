package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
)

// typed are the arguments after the first unknown name.
var typed = map[string][]string{
	"approve": {"a.example:443"}, "policy set": {"--allow-net", "a.example"}, "session exec": {"true"},
	"session run": {"--code", "1"}, "session put": {"name", "1"}, "session extend": {"1h"}, "session forward": {"80"},
	"debug dump": {"-o", "core"},
}

// An unknown name from the user gives exit code 2, in every command with a name. One error shows the name once.
func TestTypedNames(t *testing.T) {
	t.Setenv("UNITASK_HOME", testdir.Private(t))
	t.Chdir(testdir.Private(t))
	checked := 0
	for path, cmd := range leaves() {
		places := argumentPlaces(cmd)
		if len(places) == 0 || len(places[0]) == 0 {
			continue
		}
		args := append(append(strings.Fields(path), "nothing"), typed[path]...)
		code, out, errs := said(t, args...)
		if code != unitask.ExitUsage || out != "" || strings.Count(errs, "unitask: ") != 1 ||
			!strings.Contains(errs, "nothing") {
			t.Errorf("%q: exit code %d, %q, %q", args, code, out, errs)
		}
		checked++
	}
	if checked < 15 {
		t.Errorf("%d commands take a name", checked)
	}
}

// A missing requirement of the host gives exit code 125, in every command that needs it.
func TestHostFaults(t *testing.T) {
	dir := testdir.Private(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("UNITASK_HOME", filepath.Join(file, "home"))
	t.Chdir(dir)
	checked := 0
	for path := range leaves() {
		if tables[path] == nil && !slices.Contains([]string{"runs ls", "image ls", "df", "approve"}, path) ||
			path == "policy show" || path == "policy trust" { // these need no home
			continue
		}
		code, _, errs := said(t, append(strings.Fields(path), tables[path]...)...)
		if code != unitask.ExitHost || errs == "" {
			t.Errorf("%s: exit code %d, %q", path, code, errs)
		}
		checked++
	}
	if checked < 6 {
		t.Errorf("%d commands need a home", checked)
	}
}
