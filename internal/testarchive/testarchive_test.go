package testarchive

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// recorder is a test that keeps its failures.
type recorder struct {
	testing.TB
	failures []string
	cleanups []func()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool              { return len(r.failures) > 0 }
func (r *recorder) Skipped() bool             { return false }
func (r *recorder) Errorf(f string, a ...any) { r.failures = append(r.failures, fmt.Sprintf(f, a...)) }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) Fatal(a ...any)            { r.Fatalf("%s", fmt.Sprint(a...)) }

func TestArchive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.txtar")
	if err := os.WriteFile(path, []byte("-- a.py --\nprint(1)\n-- a.out --\n1\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		read     func(a *Archive)
		failures []string
	}{
		"all": {
			read: func(a *Archive) {
				if got := a.Text("a.py"); got != "print(1)" {
					t.Errorf("got %q, want the program without its last newline", got)
				}
				if got := a.File("a.out"); got != "1\n\n" {
					t.Errorf("got %q, want the file as it stands there", got)
				}
			},
		},
		"a file is left": {
			read:     func(a *Archive) { a.Text("a.py") },
			failures: []string{path + `: nothing reads "a.out"`},
		},
		"a file is missing": {
			read:     func(a *Archive) { a.Text("b.py") },
			failures: []string{path + ` has no file "b.py"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				c.read(Open(r, path))
			}()
			<-ended
			for _, f := range r.cleanups {
				f()
			}
			if !slices.Equal(r.failures, c.failures) {
				t.Errorf("got %q, want %q", r.failures, c.failures)
			}
		})
	}
}
