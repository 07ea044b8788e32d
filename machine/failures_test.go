package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/vmm"
)

// What is given up, and for how long.
func TestGivenUp(t *testing.T) {
	type step struct {
		after time.Duration // after the previous step
		did   string        // failed, worked or nothing
		given bool          // afterwards
	}
	for name, steps := range map[string][]step{
		"nothing failed": {{0, "", false}},
		"one failed":     {{0, "failed", false}, {time.Hour, "", false}},
		"two failed": {{0, "failed", false}, {time.Minute, "failed", true}, {giveUpFor - time.Second, "", true},
			{time.Second, "", false}},
		"one worked in between": {{0, "failed", false}, {0, "worked", false}, {0, "failed", false}, {0, "failed", true}},
		"the first is long ago": {{0, "failed", false}, {giveUpFor, "failed", false}, {0, "failed", true}},
		"it fails again later": {{0, "failed", false}, {0, "failed", true}, {giveUpFor, "failed", false},
			{0, "failed", true}},
		"it works again": {{0, "failed", false}, {0, "failed", true}, {giveUpFor, "worked", false},
			{0, "failed", false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := OpenTemplates(filepath.Join(t.TempDir(), "templates"))
				for i, step := range steps {
					testwait.Pass(step.after)
					switch step.did {
					case "failed":
						s.Failed("key", fmt.Errorf("load of migration failed\n%s", strings.Repeat("x", 2*maxWhy)))
					case "worked":
						s.Worked("key")
					}
					err := s.GivenUp("key")
					if (err != nil) != step.given {
						t.Fatalf("step %d: %v", i, err)
					}
					if err != nil && (!errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "until 20") ||
						!strings.Contains(err.Error(), "load of migration failed; xxx") || len(err.Error()) > maxWhy+200) {
						t.Errorf("step %d: %v", i, err)
					}
					if err := OpenTemplates(s.dir).GivenUp("another"); err != nil {
						t.Errorf("step %d: another key: %v", i, err)
					}
				}
			})
		})
	}
}

// A file without failures gives up nothing, and old entries are removed.
func TestGivenUpFile(t *testing.T) {
	s := OpenTemplates(t.TempDir())
	file := s.failuresFile("key")
	for _, text := range []string{"", "\n\n\n", "{}\n{}\n{}\n", "null\n3\n", strings.Repeat("{", maxFailures),
		`{"at":"2999-01-01T00:00:00Z"}` + "\n" + `{"at":"2999-01-01T00:00:00Z"}` + "\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.GivenUp("key"); err != nil {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	s.Prune(1)
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a new one is removed: %v", err)
	}
	if err := os.Chtimes(file, time.Time{}, time.Now().Add(-giveUpFor-time.Second)); err != nil {
		t.Fatal(err)
	}
	s.Prune(1)
	if _, err := os.Stat(file); err == nil {
		t.Error("an old one is kept")
	}
}

// A source counts failed templates, not clones: many clones of one template may fail together.
func TestTemplateFailed(t *testing.T) {
	s, spec := accelSource(t, "")
	s.templates, _ = saved(t, spec.Key())
	bad := errors.New("load of migration failed")
	for range 5 {
		s.templateFailed(spec, bad)
	}
	if err := s.templates.GivenUp(spec.Key()); err != nil {
		t.Fatalf("after one template: %v", err)
	}
	save(t, s.templates, spec.Key())
	s.templateFailed(spec, fmt.Errorf("%w: its memory was changed", ErrTemplate))
	if err := s.templates.GivenUp(spec.Key()); err != nil {
		t.Fatalf("one that was damaged counts: %v", err)
	}
	save(t, s.templates, spec.Key())
	for range 5 { // something kills a clone's QEMU: the template stays
		s.templateFailed(spec, fmt.Errorf("%w (EOF)", vmm.Exit{Code: -1, Signal: "killed"}.Err()))
		_ = s.notMade(t.Context(), spec, vmm.Exit{Code: -1, Signal: "killed"}.Err())
	}
	if err := errors.Join(s.templates.Check(spec.Key()), s.templates.GivenUp(spec.Key())); err != nil {
		t.Errorf("after five that were killed: %v", err)
	}
	s.templateFailed(spec, vmm.Exit{Code: -1, Signal: "killed", OutOfMemory: true}.Err())
	var given *GivenUp
	if _, err := s.spawn(t.Context(), spec); !errors.As(err, &given) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after two: %v", err)
	}
	if _, err := (maker{s}).spawn(t.Context(), spec); !errors.As(err, &given) {
		t.Errorf("the pool's: %v", err)
	}
	s.Warm(spec) // makes none
	if entries, _ := filepath.Glob(filepath.Join(s.templates.dir, "*.lock")); len(entries) > 0 {
		t.Errorf("one is made: %v", entries)
	}
	s.templateWorked(spec)
	if err := s.templates.GivenUp(spec.Key()); err != nil {
		t.Errorf("it works: %v", err)
	}
}
