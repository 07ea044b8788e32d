package changes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A set that can't be undone or read is not applied, and the home is no place for changes.
func TestSetLimits(t *testing.T) {
	t.Run("old texts count", func(t *testing.T) {
		p := newPlace(t, nil)
		var files []File
		for i := range 6 {
			name := fmt.Sprint(i)
			if err := errors.Join(os.WriteFile(p.at(name), nil, 0o644), os.Truncate(p.at(name), 60<<20)); err != nil {
				t.Fatal(err)
			}
			files = append(files, File{Path: name, Open: text("x")})
		}
		if _, left, err := p.Propose(p.dir, "", "", files); err != nil || len(left) != 2 {
			t.Errorf("left out %v, %v", left, err)
		}
	})
	t.Run("a set that can't be read", func(t *testing.T) {
		p := newPlace(t, nil)
		set := p.propose(File{Path: "a", Open: text("a")})
		if err := os.WriteFile(p.in(set.ID, setFile), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		p.propose(File{Path: "b", Open: text("b")})
		if _, err := os.Lstat(p.in(set.ID, setFile)); err != nil {
			t.Error(err)
		}
	})
	t.Run("long paths", func(t *testing.T) {
		p := newPlace(t, nil)
		var files []File
		for i := range 100 {
			files = append(files, File{Path: strings.Repeat(strings.Repeat("&", 60)+"/", 20) + fmt.Sprint(i), Open: text("x")})
		}
		set, _, err := p.Propose(p.dir, "", "", files)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply(set.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Undo(set.ID); err != nil {
			t.Errorf("what was applied can't be undone: %v", err)
		}
	})
	t.Run("the home", func(t *testing.T) {
		p := newPlace(t, nil)
		home, err := filepath.EvalSymlinks(p.home)
		if err != nil {
			t.Fatal(err)
		}
		if set, _, err := p.Propose(home, "", "", []File{{Path: "config.toml", Open: text("x")}}); err == nil {
			t.Errorf("proposed in the home: %v", set)
		}
		above := filepath.Dir(home)
		files := []File{{Path: filepath.Base(home) + "/f", Open: text("x")}}
		if set, left, err := p.Propose(above, "", "", files); err == nil || len(left) != 1 {
			t.Errorf("proposed in the home: %v, %v", set, left)
		}
	})
}

// Nothing of the user's is lost after a crash, or by an undo.
func TestUsersText(t *testing.T) {
	t.Run("a file of the user with the same text", func(t *testing.T) {
		p := newPlace(t, nil)
		set := p.propose(File{Path: "a", Open: text("a")}, File{Path: "b", Open: text("b")})
		p.put("a", "a")
		if _, err := p.Apply(set.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Undo(set.ID); err != nil {
			t.Fatal(err)
		}
		p.has(map[string]string{"a": "a"})
	})
	t.Run("an edit after a crash", func(t *testing.T) {
		p := newPlace(t, map[string]string{"a": "a", "b": "b"})
		set := p.propose(File{Path: "a", Open: text("A")}, File{Path: "b", Open: text("B")},
			File{Path: "n/c", Open: text("C")})
		p.die(set, 1)
		p.put("b", "mine")
		set, err := p.Undo(set.ID)
		if err != nil || fmt.Sprint(set.Left) != "[b]" || set.State != Undoing {
			t.Errorf("%v, %v", set, err)
		}
		for name, want := range map[string]string{"a": "a", "b": "mine"} {
			if got, err := os.ReadFile(p.at(name)); string(got) != want || err != nil {
				t.Errorf("%s has %q, want %q: %v", name, got, want, err)
			}
		}
	})
	t.Run("a crash between two names", func(t *testing.T) {
		p := newPlace(t, map[string]string{"a": "a"})
		set := p.propose(File{Path: "a", Open: text("A")})
		p.die(set, 0)
		if err := os.Rename(p.at("a"), p.at(".unitask-cp-x")); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Undo(set.ID); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(p.at("a")); string(got) != "a" || err != nil {
			t.Errorf("a has %q, %v", got, err)
		}
	})
	t.Run("a folder of the user", func(t *testing.T) {
		p := newPlace(t, nil)
		set := p.propose(File{Path: "n/a", Open: text("A")})
		_, err := p.Apply(set.ID)
		if _, e := p.Undo(set.ID); err != nil || e != nil {
			t.Fatal(err, e)
		}
		err = os.Mkdir(p.at("n"), 0o755)
		_, e := p.Apply(set.ID)
		if _, e2 := p.Undo(set.ID); err != nil || e != nil || e2 != nil {
			t.Fatal(err, e, e2)
		}
		if _, err := os.Stat(p.at("n")); err != nil {
			t.Error(err)
		}
	})
}

// A resumed change leaves the files that it can't find; a later undo can restore them.
func TestResumed(t *testing.T) {
	t.Run("a file that is gone after a crash", func(t *testing.T) {
		p := newPlace(t, map[string]string{"a": "a", "b": "b"})
		set := p.propose(File{Path: "a", Open: text("A")}, File{Path: "b", Open: text("B")})
		p.die(set, 0)
		if err := os.Remove(p.at("a")); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply(set.ID); !errors.As(err, new(*ConflictError)) {
			t.Errorf("applied over a file that is gone: %v", err)
		}
		if set, err := p.Undo(set.ID); err != nil || fmt.Sprint(set.Left) != "[a]" {
			t.Errorf("%v, %v", set, err)
		}
	})
	t.Run("a file that can't be opened for a moment", func(t *testing.T) {
		p := newPlace(t, map[string]string{"d/a": "a"})
		set := p.propose(File{Path: "d/a", Open: text("A")})
		p.die(set, 1)
		if err := errors.Join(os.Rename(p.at("d"), p.at("e")), os.Symlink("e", p.at("d"))); err != nil {
			t.Fatal(err)
		}
		if set, err := p.Undo(set.ID); err != nil || set.State != Undoing {
			t.Errorf("%v, %v", set, err)
		}
		if err := errors.Join(os.Remove(p.at("d")), os.Rename(p.at("e"), p.at("d"))); err != nil {
			t.Fatal(err)
		}
		if set, err := p.Undo(set.ID); err != nil || set.State != Undone {
			t.Errorf("%v, %v", set, err)
		}
		if got, err := os.ReadFile(p.at("d/a")); string(got) != "a" || err != nil {
			t.Errorf("d/a has %q, %v", got, err)
		}
	})
}
