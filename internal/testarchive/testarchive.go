// Package testarchive reads the programs and expected outputs of tests from txtar archives.
package testarchive

import (
	"flag"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// An Archive holds the files of one test, by name. Subtests may read it in parallel.
type Archive struct {
	t     testing.TB
	path  string
	files map[string]string

	mu   sync.Mutex
	used map[string]bool
}

// Open reads an archive. The test fails in the end if it has not read each file. Part of a test need not read all.
func Open(t testing.TB, path string) *Archive {
	t.Helper()
	parsed, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a := &Archive{t: t, path: path, files: map[string]string{}, used: map[string]bool{}}
	for _, f := range parsed.Files {
		if _, twice := a.files[f.Name]; twice {
			t.Errorf("%s has two files %q", path, f.Name)
		}
		a.files[f.Name] = string(f.Data)
	}
	t.Cleanup(func() {
		run := flag.Lookup("test.run")
		part := run != nil && strings.Contains(run.Value.String(), "/")
		if part || t.Failed() || t.Skipped() {
			return
		}
		for name := range a.files {
			if !a.used[name] {
				t.Errorf("%s: nothing reads %q", path, name)
			}
		}
	})
	return a
}

// File returns a file as it stands in the archive, which ends each file with a newline.
func (a *Archive) File(name string) string {
	a.t.Helper()
	text, ok := a.files[name]
	if !ok {
		a.t.Fatalf("%s has no file %q", a.path, name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used[name] = true
	return text
}

// Text returns a file without its last newline.
func (a *Archive) Text(name string) string {
	a.t.Helper()
	return strings.TrimSuffix(a.File(name), "\n")
}
