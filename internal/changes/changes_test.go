package changes

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
)

// place is a home with sets, and a folder with files.
type place struct {
	*testing.T
	*Store
	home, dir string
}

func newPlace(t *testing.T, files map[string]string) *place {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	p := &place{t, Open(home, &audit.Journal{Log: audit.In(home)}), home, dir}
	for name, text := range files {
		p.put(name, text)
	}
	return p
}

func (p *place) at(name string) string { return filepath.Join(p.dir, name) }

func (p *place) put(name, text string) {
	p.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(p.at(name)), 0o755),
		os.WriteFile(p.at(name), []byte(text), 0o644)); err != nil {
		p.Fatal(err)
	}
}

// has checks that the folder has these files and no others; a folder's name ends in a slash.
func (p *place) has(want map[string]string) {
	p.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(p.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		rel, _ := filepath.Rel(p.dir, name)
		got[rel] = string(text)
		return err
	})
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		p.Errorf("the folder has %q, want %q: %v", got, want, err)
	}
}

func text(text string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

func (p *place) propose(files ...File) *Set {
	p.Helper()
	set, left, err := p.Propose(p.dir, "", "me", files)
	if err != nil || len(left) > 0 {
		p.Fatalf("left %v, %v", left, err)
	}
	return set
}

// A set is proposed, shown, applied, undone and applied again.
func TestSet(t *testing.T) {
	before := map[string]string{"a.txt": "one\ntwo\n", "gone.txt": "old\n", "sub/same.txt": "same\n"}
	p := newPlace(t, before)
	set := p.propose(File{Path: "a.txt", Open: text("one\n2\n")}, File{Path: "gone.txt"},
		File{Path: "new/deep/b.txt", Open: text("b\n")}, File{Path: "sub/same.txt", Open: text("same\n")})
	p.has(before)
	var diff strings.Builder
	if unshown, err := p.Diff(&diff, set); err != nil || unshown != 0 {
		t.Fatal(unshown, err)
	}
	const want = "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" +
		"--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n" +
		"--- /dev/null\n+++ b/new/deep/b.txt\n@@ -0,0 +1 @@\n+b\n"
	if diff.String() != want {
		t.Errorf("got the diff\n%s\nwant\n%s", &diff, want)
	}
	after := map[string]string{"a.txt": "one\n2\n", "new/deep/b.txt": "b\n", "sub/same.txt": "same\n"}
	for range 2 {
		if set, err := p.Apply(set.ID); err != nil || set.State != Applied {
			t.Fatalf("%v %v", set, err)
		}
		p.has(after)
		if _, err := p.Apply(set.ID); !errors.Is(err, ErrState) {
			t.Errorf("applied twice: %v", err)
		}
		if set, err := p.Undo(set.ID); err != nil || set.State != Undone {
			t.Fatalf("%v %v", set, err)
		}
		p.has(before)
		if _, err := os.Lstat(p.at("new")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the new folder stays: %v", err)
		}
	}
	if _, err := p.Undo(set.ID); !errors.Is(err, ErrState) {
		t.Errorf("undone twice: %v", err)
	}
	var kinds []string
	if err := p.log.Read(func(_ int64, line []byte) error {
		_, rest, _ := strings.Cut(string(line), `"kind":"changes.`)
		kind, _, _ := strings.Cut(rest, `"`)
		kinds = append(kinds, kind)
		return nil
	}); err != nil || fmt.Sprint(kinds) != "[proposed started ended started ended started ended started ended]" {
		t.Errorf("the audit log has %v, %v", kinds, err)
	}
}

// A file that changed since the diff stops the whole set, applied or undone.
func TestAttackConflicts(t *testing.T) {
	files := map[string]string{"a": "a", "b": "b"}
	set := []File{{Path: "a", Open: text("A")}, {Path: "b", Open: text("B")}, {Path: "c", Open: text("C")},
		{Path: "d/e", Open: text("E")}}
	for name, change := range map[string]func(p *place) error{
		"text":    func(p *place) error { return os.WriteFile(p.at("b"), []byte("mine"), 0o644) },
		"gone":    func(p *place) error { return os.Remove(p.at("b")) },
		"program": func(p *place) error { return os.Chmod(p.at("b"), 0o755) },
		"new":     func(p *place) error { return os.WriteFile(p.at("c"), []byte("mine"), 0o644) },
		"folder":  func(p *place) error { return os.Mkdir(p.at("c"), 0o755) },
		"link":    func(p *place) error { return errors.Join(os.Remove(p.at("b")), os.Symlink("a", p.at("b"))) },
		"above":   func(p *place) error { return os.Symlink(p.home, p.at("d")) },
		"no room": func(p *place) error { return os.WriteFile(p.at("d"), nil, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, files)
			made := p.propose(set...)
			if err := change(p); err != nil {
				t.Fatal(err)
			}
			var conflict *ConflictError
			got, err := p.Apply(made.ID)
			attack.Check(t, "a file that changed since the diff: "+name, "proposed true",
				fmt.Sprint(got.State, " ", errors.As(err, &conflict) && len(conflict.Files) == 1))
			if a, err := os.ReadFile(p.at("a")); string(a) != "a" || err != nil {
				t.Errorf("a has %q, %v", a, err)
			}
			if list, _ := filepath.Glob(p.at(".*")); len(list) > 0 {
				t.Errorf("left behind: %v", list)
			}
		})
	}
	p := newPlace(t, files)
	made := p.propose(set...)
	if _, err := p.Apply(made.ID); err != nil {
		t.Fatal(err)
	}
	p.put("c", "mine")
	if _, err := p.Undo(made.ID); !errors.As(err, new(*ConflictError)) {
		t.Errorf("undone over a changed file: %v", err)
	}
	p.has(map[string]string{"a": "A", "b": "B", "c": "mine", "d/e": "E"})
}

// The rule of exports holds for a set's names, unless a file is named. Bad paths are never written.
func TestAttackLeftOut(t *testing.T) {
	p := newPlace(t, map[string]string{"tool": "x", "plain": "x"})
	if err := errors.Join(os.Chmod(p.at("tool"), 0o755), os.Symlink("plain", p.at("link")),
		os.Symlink(p.home, p.at("out"))); err != nil {
		t.Fatal(err)
	}
	for name, named := range map[string]bool{".envrc": true, ".git/hooks/pre-commit": true, "Makefile": true,
		"sub/CLAUDE.md": true, "tool": true, "link": false, "out/f": false, "../f": false, "/f": false, "a/../b": false,
		"": false, ".": false, "plain/f": false} {
		set, left, err := p.Propose(p.dir, "", "", []File{{Path: name, Open: text("new")}})
		if set != nil || len(left) != 1 || left[0].Path != name || left[0].Reason == "" {
			t.Errorf("%q: got %v, left %v", name, set, left)
		}
		attack.Check(t, fmt.Sprintf("a change of %q", name), ErrNothing.Error(), fmt.Sprint(err))
		_, _, err = p.Propose(p.dir, "", "", []File{{Path: name, Named: true, Open: text("new")}})
		attack.Check(t, fmt.Sprintf("a change of %q, named", name), fmt.Sprint(named), fmt.Sprint(err == nil))
	}
	set := p.propose(File{Path: "tool", Named: true, Open: text("new")}, File{Path: "fresh", Open: text("new")})
	if _, err := p.Apply(set.ID); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"tool": 0o755, "fresh": 0o644 &^ umask()} {
		if st, err := os.Stat(p.at(name)); err != nil || st.Mode() != want {
			t.Errorf("%s has the mode %v, want %v: %v", name, st.Mode(), want, err)
		}
	}
	if _, _, err := p.Propose(p.dir, "", "", make([]File, maxCompared+1)); err == nil {
		t.Error("too many files are proposed")
	}
	if _, _, err := p.Propose(p.at("out"), "", "", nil); err == nil {
		t.Error("a link is taken for the folder")
	}
	many := make([]File, maxChanges+1)
	for i := range many {
		many[i] = File{Path: fmt.Sprint(i), Open: text("x")}
	}
	if _, _, err := p.Propose(p.dir, "", "", many); err == nil || !strings.Contains(err.Error(), "files differ") {
		t.Errorf("too many changes: %v", err)
	}
	if entries, err := os.ReadDir(p.Store.home.Changes()); err != nil || len(entries) > 6 {
		t.Errorf("%d sets are left, %v", len(entries), err)
	}
}

// A process that ends in the middle leaves a set that is completed or taken back.
func TestInterrupted(t *testing.T) {
	before := map[string]string{"a": "a", "b": "b"}
	after := map[string]string{"a": "A", "b": "B", "n/c": "C"}
	for end := range 4 {
		for _, undo := range []bool{false, true} {
			t.Run(fmt.Sprint(end, undo), func(t *testing.T) {
				p := newPlace(t, before)
				set := p.propose(File{Path: "a", Open: text("A")}, File{Path: "b", Open: text("B")},
					File{Path: "n/c", Open: text("C")})
				p.die(set, end)
				want, move := after, p.Apply
				if undo {
					want, move = before, p.Undo
				}
				if _, err := move(set.ID); err != nil {
					t.Fatal(err)
				}
				got := map[string]string{}
				for name := range after {
					if text, err := os.ReadFile(p.at(name)); err == nil {
						got[name] = string(text)
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got %v, want %v", got, want)
				}
			})
		}
	}
}

// die does what a killed process did: it saved the set and changed some files.
func (p *place) die(set *Set, changed int) {
	p.Helper()
	w, err := newWriter(p.dir)
	if err != nil {
		p.Fatal(err)
	}
	defer w.close()
	var edits []edit
	for _, c := range set.Changes {
		edits = append(edits, edit{path: c.Path, from: c.Before, to: c.After, text: p.text(set, c.After), mode: 0o644})
	}
	err = w.look(set.ID, edits, false, false)
	set.State, set.Folders = Applying, w.missing()
	err = errors.Join(err, p.save(set))
	for _, s := range w.steps {
		err = errors.Join(err, w.stage(s))
	}
	for _, s := range w.steps[:changed] {
		err = errors.Join(err, s.change())
	}
	if err != nil {
		p.Fatal(err)
	}
}

// A failure after some files takes them back, and the old files are the very same.
func TestTakenBack(t *testing.T) {
	p := newPlace(t, map[string]string{"a": "a", "b": "b"})
	set := p.propose(File{Path: "a", Open: text("A")}, File{Path: "b", Open: text("B")},
		File{Path: "n/c", Open: text("C")})
	st, err := os.Stat(p.at("a"))
	if err != nil {
		t.Fatal(err)
	}
	b := set.Changes[slices.IndexFunc(set.Changes, func(c Change) bool { return c.Path == "b" })]
	if err := os.WriteFile(p.text(set, b.After), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Apply(set.ID); err == nil || got.State != Proposed {
		t.Errorf("a damaged text: %v %v", got, err)
	}
	p.has(map[string]string{"a": "a", "b": "b"})
	if now, err := os.Stat(p.at("a")); err != nil || !os.SameFile(now, st) {
		t.Errorf("a is another file: %v", err)
	}
	if _, err := os.Lstat(p.at("n")); err == nil {
		t.Error("a new folder stays")
	}
}

// A file that is changed between the check and the exchange is not lost.
func TestAttackChangedMeanwhile(t *testing.T) {
	p := newPlace(t, map[string]string{"a": "a", "b": "b"})
	set := p.propose(File{Path: "a", Open: text("A")}, File{Path: "b", Open: text("B")})
	w, err := newWriter(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	var edits []edit
	for _, c := range set.Changes {
		edits = append(edits, edit{path: c.Path, from: c.Before, to: c.After, text: p.text(set, c.After), mode: 0o644})
	}
	if err := w.look(set.ID, edits, false, false); err != nil {
		t.Fatal(err)
	}
	p.put("b", "mine")
	err = w.write(set.ID)
	attack.Check(t, "a file that changes while it is written", "true false",
		fmt.Sprint(errors.As(err, new(*ConflictError)), errors.Is(err, errHalf)))
	p.has(map[string]string{"a": "a", "b": "mine"})
}

// The oldest sets go; the newest and those under way stay.
func TestBound(t *testing.T) {
	p := newPlace(t, nil)
	first := p.propose(File{Path: "first", Open: text("x")})
	first.State = Applying
	if err := p.save(first); err != nil {
		t.Fatal(err)
	}
	applied := p.propose(File{Path: "applied", Open: text("x")})
	if _, err := p.Apply(applied.ID); err != nil {
		t.Fatal(err)
	}
	for i := range maxSets + 3 {
		p.propose(File{Path: fmt.Sprint(i), Open: text("x")})
	}
	list, err := p.List()
	if err != nil || len(list) < maxSets+1 || len(list) > maxSets+2 {
		t.Errorf("%d sets, %v", len(list), err)
	}
	for _, set := range []*Set{first, applied} {
		if _, err := p.Get(set.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.Get("change-"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a prefix of all: %v", err)
	}
	if err := p.Remove(first.ID); err != nil {
		t.Error(err)
	}
	if _, err := p.Get(first.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed: %v", err)
	}
}

// No text or name can forge a line of the diff, or hide in one.
func TestAttackDiff(t *testing.T) {
	p := newPlace(t, map[string]string{"a": "x\n"})
	set := p.propose(File{Path: "a", Open: text("\u202egnp.exe\n\x1b[2J\r+++ b/safe\n⟨U+000D⟩ \u3164\ufe0f\u2028\n")},
		File{Path: "b\n+++ c", Named: true, Open: text("x")}, File{Path: "bin", Open: text("\x00")},
		File{Path: "big", Open: text(strings.Repeat("x\n", maxShown))}, File{Path: "none", Open: text("")})
	var diff strings.Builder
	unshown, err := p.Diff(&diff, set)
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "files that a diff does not show", "2", fmt.Sprint(unshown))
	got := "none"
	for line := range strings.Lines(diff.String()) {
		if strings.ContainsAny(line, "\x1b\r\u202e") || strings.HasPrefix(line, "+++ c") {
			got = line
		}
	}
	attack.Check(t, "a line of a diff that hides or is forged", "none", got)
	for _, want := range []string{`+⟨U+202E⟩gnp.exe`, `+⟨U+001B⟩[2J⟨U+000D⟩+++ b/safe`,
		`+++ b/b⟨U+000A⟩+++ c`,
		`+⟨U+27E8⟩U+000D⟩ ⟨U+3164⟩⟨U+FE0F⟩⟨U+2028⟩`,
		"Before: no file. After: 1 bytes", "After: 2097152 bytes", "The file is empty"} {
		if !strings.Contains(diff.String(), want) {
			t.Errorf("the diff lacks %q:\n%.2000s", want, diff.String())
		}
	}
}

func umask() fs.FileMode {
	old := syscall.Umask(0)
	syscall.Umask(old)
	return fs.FileMode(old)
}
