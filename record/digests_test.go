package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// ended returns a store with an ended run that has two artifacts and some output, and the digest of its run.json.
func ended(t *testing.T) (s *Store, rec *Record, artifacts []Artifact, digest string) {
	t.Helper()
	s = Open(filepath.Join(t.TempDir(), "runs"))
	r := create(t, s, time.Now())
	fmt.Fprintln(r.Stdout(), "out")
	r.Netlog(map[string]int{"n": 1})
	a := r.Artifacts(1<<20, nil)
	for _, name := range []string{"a", "b/c"} {
		if err := errors.Join(a.Begin(0, 0o644, name), a.Data([]byte("text of "+name))); err != nil {
			t.Fatal(err)
		}
	}
	r.Status = Done
	if err := errors.Join(a.Close(true), r.Finish(time.Now())); err != nil {
		t.Fatal(err)
	}
	rec, err := s.Get(r.ID)
	if err != nil {
		t.Fatal(err)
	}
	return s, rec, a.Kept, r.Digest()
}

// found are the differences of a comparison, in brief.
func found(c *Comparison) (list []string) {
	for _, d := range c.Differences {
		list = append(list, string(d.Change)+" "+d.Path)
	}
	return list
}

// A record that nobody changed has no differences, and its digests are of all of its files.
func TestCompareSame(t *testing.T) {
	s, rec, artifacts, digest := ended(t)
	var names []string
	for _, f := range rec.Files {
		names = append(names, f.Name)
	}
	if want := []string{"code.mjs", "console.log", "netlog.jsonl", "stderr", "stdout"}; !slices.Equal(names, want) {
		t.Errorf("the record has digests of %q, want %q", names, want)
	}
	c, err := s.Compare(t.Context(), rec.ID, rec, artifacts, digest)
	if err != nil || len(c.Differences) != 0 || c.Files != 8 {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = s.Compare(t.Context(), rec.ID, rec, artifacts, strings.ToUpper(digest))
	if err != nil || len(c.Differences) != 0 {
		t.Errorf("a digest in upper case: %+v, %v", c, err)
	}
}

// Each change to a record's folder is found, and the file is named.
func TestAttackCompare(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(dir string) error
		want   string
	}{
		{"a byte of an artifact", write("out/a", "text 0f a"), "differs out/a"},
		{"an artifact is longer", write("out/a", "text of a and more"), "differs out/a"},
		{"an artifact is gone",
			func(dir string) error { return os.Remove(filepath.Join(dir, "out/b/c")) }, "missing out/b/c"},
		{"all artifacts are gone", func(dir string) error { return os.RemoveAll(filepath.Join(dir, "out")) }, "missing out"},
		{"one more artifact", write("out/b/d", ""), "extra out/b/d"},
		{"an artifact is a link to the same text", link("out/a", "b/a"), "differs out/a"},
		{"a link out of the record", link("out/new", "/etc/passwd"), "extra out/new"},
		{"the artifacts' folder is a link", link("out", "/tmp"), "extra out"},
		{"a FIFO for an artifact", fifo("out/a"), "differs out/a"},
		{"a FIFO for stdout", fifo("stdout"), "differs stdout"},
		{"a FIFO for run.json", fifo("run.json"), "differs run.json"},
		{"the code", write("code.mjs", "other"), "differs code.mjs"},
		{"a line of the netlog", write("netlog.jsonl", `{"n":2}`+"\n"), "differs netlog.jsonl"},
		{"stderr is gone", func(dir string) error { return os.Remove(filepath.Join(dir, "stderr")) }, "missing stderr"},
		{"run.json", write("run.json", "{}"), "differs run.json"},
		{"run.json is gone", func(dir string) error { return os.Remove(filepath.Join(dir, "run.json")) }, "missing run.json"},
		{"one more file", write("notes", ""), "extra notes"},
		{"one more folder", func(dir string) error { return os.Mkdir(filepath.Join(dir, "more"), 0o700) }, "extra more"},
		{"an empty folder of artifacts", func(dir string) error { return os.Mkdir(filepath.Join(dir, "out/d"), 0o700) }, ""},
		{"a sparse file of 1 TiB for stdout", func(dir string) error {
			return os.Truncate(filepath.Join(dir, "stdout"), 1<<40)
		}, "differs stdout"},
		{"artifacts 40 folders deep", func(dir string) error {
			return os.MkdirAll(filepath.Join(dir, "out", strings.Repeat("d/", 40)), 0o700)
		}, "extra out/" + strings.TrimSuffix(strings.Repeat("d/", 33), "/")},
		{"a record with 200 more files", func(dir string) error {
			err := error(nil)
			for i := range 200 {
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, fmt.Sprint("x", i)), nil, 0o600))
			}
			return err
		}, "extra ."},
	} {
		s, rec, artifacts, digest := ended(t)
		if err := c.change(s.Path(rec.ID, "")); err != nil {
			t.Fatal(err)
		}
		got, err := s.Compare(t.Context(), rec.ID, rec, artifacts, digest)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		attack.Check(t, "a record that was changed: "+c.name, c.want, strings.Join(found(got), ", "))
	}
}

func write(name, text string) func(string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600) }
}

func link(name, to string) func(string) error {
	return func(dir string) error {
		name := filepath.Join(dir, name)
		if to == "b/a" {
			if err := os.WriteFile(filepath.Join(filepath.Dir(name), to), []byte("text of a"), 0o600); err != nil {
				return err
			}
			defer os.Remove(filepath.Join(filepath.Dir(name), to))
		}
		return errors.Join(os.RemoveAll(name), os.Symlink(to, name))
	}
}

func fifo(name string) func(string) error {
	return func(dir string) error {
		name := filepath.Join(dir, name)
		return errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600))
	}
}

// A foreign run.json leads to no file outside the folder, and costs no more than a record of unitask.
func TestAttackCompareHostileRecord(t *testing.T) {
	sum := strings.Repeat("0", 64)
	for _, c := range []struct {
		name      string
		files     []File
		artifacts []Artifact
		want      string // the first difference
	}{
		{"a file of the parent", []File{{"../x", 0, sum}}, nil, `it lists a file "../x" that can't be`},
		{"a file in a folder", []File{{"out/a", 9, sum}}, nil, `it lists a file "out/a" that can't be`},
		{"an absolute file", []File{{"/etc/passwd", 0, sum}}, nil, `it lists a file "/etc/passwd" that can't be`},
		{"no name", []File{{"", 0, sum}}, nil, `it lists a file "" that can't be`},
		{"run.json itself", []File{{"run.json", 0, sum}}, nil, `it lists a file "run.json" that can't be`},
		{"a file twice", []File{{"x", 0, sum}, {"x", 0, sum}}, nil, "there is no such file"},
		{"a size of 2^62", []File{{"x", 1 << 62, sum}, {"y", 1 << 62, sum}}, nil,
			"it lists 2 files of 8589934594 bytes: a record has at most 64, of 4294967296 bytes"},
		{"a negative size", []File{{"stdout", -1, sum}}, nil, "has 4 bytes, not -1"},
		{"a digest that is none", []File{{"stdout", 4, strings.Repeat("x\x1b", 1<<20)}}, nil, "its SHA-256 is "},
		{"1000 files", make([]File, 1000), nil, "it lists 1000 files of 0 bytes: a record has at most 64"},
		{"an artifact of the parent", nil, []Artifact{{Path: "../run.json"}},
			`it lists an artifact "../run.json" that can't be`},
		{"an artifact twice", nil, []Artifact{{Path: "z"}, {Path: "z"}}, "there is no such file"},
		{"a million artifacts", nil, make([]Artifact, 1_000_000), "it lists 1000000 artifacts of 0 bytes: a run has"},
		{"artifacts of 2^62 bytes", nil, []Artifact{{Path: "x", Size: 1 << 62}, {Path: "y", Size: 1 << 62}},
			"it lists 2 artifacts of 8589934594 bytes: a run has"},
	} {
		s, rec, _, _ := ended(t)
		rec.Files = c.files
		got, err := s.Compare(t.Context(), rec.ID, rec, c.artifacts, "")
		if err != nil || len(got.Differences) > maxDifferences {
			t.Fatalf("%s: %v", c.name, err)
		}
		says := "nothing"
		if len(got.Differences) > 0 {
			says = got.Differences[0].Detail
		}
		if strings.HasPrefix(says, c.want) && len(says) < 400 {
			says = c.want
		}
		attack.Check(t, "a hostile run.json: "+c.name, c.want, says)
	}
}

// A comparison names a hundred differences and counts the others.
func TestCompareMany(t *testing.T) {
	s, rec, artifacts, digest := ended(t)
	r := rec.ID
	for i := range 150 {
		if err := write(fmt.Sprint("out/more", i), "")(s.Path(rec.ID, "")); err != nil {
			t.Fatal(err)
		}
	}
	c, err := s.Compare(t.Context(), rec.ID, rec, artifacts, digest)
	if err != nil || len(c.Differences) != maxDifferences || c.More != 50 {
		t.Errorf("%d and %d more: %v", len(c.Differences), c.More, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Compare(ctx, rec.ID, rec, artifacts, digest); !errors.Is(err, context.Canceled) {
		t.Errorf("a comparison that is cancelled ends with %v", err)
	}
	if _, err := s.Compare(t.Context(), "../x", rec, nil, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("an id of another folder: %v", err)
	}
	rec.ID = "another"
	if c, err := s.Compare(t.Context(), r, rec, nil, ""); err != nil || c.Differences[0].Detail !=
		`it is of the run "another"` {
		t.Errorf("a record of another run: %+v, %v", c, err)
	}
	if _, err := s.Compare(t.Context(), "none", rec, nil, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a record that is gone: %v", err)
	}
}

// A record that continues has no digests until it ends again.
func TestDigestsReopen(t *testing.T) {
	s, rec, _, digest := ended(t)
	r, err := s.Reopen(rec.ID)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(r.Stdout(), "more")
	if text, err := json.Marshal(r.Record); err != nil || strings.Contains(string(text), `"files"`) {
		t.Errorf("%s, %v", text, err)
	}
	r.Status = Done
	if err := r.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	if rec, err = s.Get(rec.ID); err != nil || r.Digest() == digest {
		t.Fatal(err)
	}
	if c, err := s.Compare(t.Context(), rec.ID, rec, nil, r.Digest()); err != nil || !slices.Equal(found(c),
		[]string{"extra out/a", "extra out/b/c"}) {
		t.Errorf("%+v, %v", c, err)
	}
}

// A record whose run.json is not a regular file is an error, and nothing waits for it.
func TestAttackRecordPipe(t *testing.T) {
	s, rec, _, _ := ended(t)
	name := filepath.Join(s.dir, rec.ID, recordFile)
	if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(rec.ID)
	attack.Check(t, "a pipe in place of run.json", "refused", map[bool]string{true: "refused", false: "read"}[err != nil])
}
