package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// A store does not grow forever, and nobody gains room through another's loss.
func TestAttackStoreSize(t *testing.T) {
	const unit = 64 << 10
	type run struct {
		owner             string
		stdout, artifacts int // units
		running           bool
	}
	many := func(n int, r run) (list []run) {
		for range n {
			list = append(list, r)
		}
		return list
	}
	for _, c := range []struct {
		name string
		most int64 // units
		runs []run
		want string // of each run: all of it, its record only (r), nothing (-)
	}{
		{"within the bound", 100, many(3, run{"alice", 1, 10, false}), "aaa"},
		{"artifacts for ever", 100, many(12, run{"alice", 0, 20, false}), "rrrrrrrraaaa"},
		{"output for ever", 100, many(12, run{"alice", 20, 0, false}), "--------aaaa"},
		{"one that is larger than the bound, which is the last", 100,
			append(many(3, run{"alice", 1, 10, false}), run{"alice", 0, 200, false}), "---a"},
		{"one caller's, beside another's older ones", 100,
			append(many(2, run{"bob", 1, 10, false}), many(12, run{"alice", 1, 22, false})...), "aarrrrrrrrrraa"},
		{"one that is under way", 100, append([]run{{"alice", 1, 60, true}}, many(3, run{"alice", 0, 30, false})...), "arra"},
		{"a greedy one's last run, beside another's", 100,
			append(many(3, run{"bob", 1, 10, false}), run{"alice", 0, 200, false}), "aaaa"},
	} {
		s := Open(filepath.Join(t.TempDir(), "runs"))
		at := time.Now()
		var ids []string
		for i, r := range c.runs {
			w, err := s.Create(at.Add(time.Duration(i)*time.Second), r.owner, ViaMCP, "code.js", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, w.ID)
			if _, err := w.Stdout().Write(make([]byte, r.stdout*unit)); err != nil {
				t.Fatal(err)
			}
			if r.artifacts > 0 {
				out := filepath.Join(w.Dir(), ArtifactsDir)
				if err := errors.Join(os.Mkdir(out, 0o700), os.WriteFile(filepath.Join(out, "a"), make([]byte, r.artifacts*unit),
					0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if r.running {
				defer w.Finish(at)
				continue
			}
			w.Status = Done
			if err := w.Finish(at); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Bound(w.ID, c.most*unit); err != nil {
				t.Fatal(err)
			}
		}
		got := ""
		for _, id := range ids {
			_, err := s.Get(id)
			_, noArtifacts := os.Stat(s.Path(id, ArtifactsDir))
			switch {
			case errors.Is(err, ErrNotFound):
				got += "-"
			case err != nil:
				t.Fatal(err)
			case noArtifacts == nil || c.runs[len(got)].artifacts == 0:
				got += "a"
			default:
				got += "r"
			}
		}
		attack.Check(t, "a store of "+fmt.Sprint(c.most)+" units: "+c.name, c.want, got)
	}
}

// Names count, too: runs that leave empty folders and files do not make a store grow forever.
func TestAttackStoreNames(t *testing.T) {
	for what, leave := range map[string]func(i int) string{
		"folders":            func(i int) string { return fmt.Sprintf("%d/a/b/c/f", i) },
		"files with no byte": func(i int) string { return fmt.Sprint(i) },
	} {
		s := Open(filepath.Join(t.TempDir(), "runs"))
		for i := range 8 {
			w, err := s.Create(time.Now().Add(time.Duration(i)*time.Second), "alice", ViaMCP, "code.js", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			out := w.Artifacts(1<<20, nil)
			for n := range 200 {
				if err := out.Begin(0, 0o600, leave(n)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(out.Close(true), w.Finish(time.Now())); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Bound(w.ID, 2<<20); err != nil {
				t.Fatal(err)
			}
		}
		names := 0
		_ = filepath.WalkDir(s.Dir(), func(string, fs.DirEntry, error) error { names++; return nil })
		attack.Check(t, "a store whose runs leave "+what, "within its bound",
			map[bool]string{true: "within its bound", false: fmt.Sprint(names, " names")}[names < 1100])
	}
}

// The stored number says when to count again; a wrong number is detected.
func TestStoreSizeIsCounted(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "runs"))
	put := func(units int) Freed {
		t.Helper()
		w, err := s.Create(time.Now(), "alice", ViaCLI, "code.js", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w.Stdout(), io.LimitReader(zeros{}, int64(units)<<16)); err != nil {
			t.Fatal(err)
		}
		w.Status = Done
		if err := w.Finish(time.Now()); err != nil {
			t.Fatal(err)
		}
		freed, err := s.Bound(w.ID, 100<<16)
		if err != nil {
			t.Fatal(err)
		}
		return freed
	}
	size := func() string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(s.Dir(), sizeFile))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	counted := func() string {
		t.Helper()
		ids, err := s.IDs()
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for _, id := range ids {
			sum += folderSize(s.Path(id, ""))
		}
		return fmt.Sprint(sum)
	}
	put(10)
	if got, want := size(), counted(); got != want {
		t.Errorf("%s, not %s", got, want)
	}
	// no number, or a large one: count again
	for _, wrong := range []string{"", "x", "-5", "99999999999999999999", "100000000"} {
		if err := os.WriteFile(filepath.Join(s.Dir(), sizeFile), []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if freed := put(1); freed != (Freed{}) {
			t.Errorf("%q: %+v", wrong, freed)
		}
		if got, want := size(), counted(); got != want {
			t.Errorf("after %q %s, not %s", wrong, got, want)
		}
	}
	if freed := put(95); freed.Runs == 0 || freed.Bytes == 0 {
		t.Errorf("%+v", freed)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Leftovers of an interrupted removal are removed at the store's next count.
func TestAttackRestOfRemoval(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "runs"))
	rest := filepath.Join(s.Dir(), removedPrefix+"20260101-000000000-aaaaaa", ArtifactsDir)
	if err := errors.Join(os.MkdirAll(rest, 0o700), os.WriteFile(filepath.Join(rest, "a"), make([]byte, 1<<20),
		0o600)); err != nil {
		t.Fatal(err)
	}
	w, err := s.Create(time.Now(), "alice", ViaMCP, "code.js", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Bound(w.ID, 1<<20); err != nil {
		t.Fatal(err)
	}
	got := "gone"
	if _, err := os.Stat(filepath.Dir(rest)); err == nil {
		got = "left"
	}
	attack.Check(t, "a store whose process was killed while it removed", "gone", got)
}
