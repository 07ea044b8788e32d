package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func newRun(t testing.TB) *Run {
	t.Helper()
	r, err := Open(filepath.Join(t.TempDir(), "runs")).Create(time.Now(), "", ViaCLI, "code.js", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Names invented by a guest never lead out of the run's folder.
func TestArtifactNames(t *testing.T) {
	r := newRun(t)
	a := r.Artifacts(1<<20, nil)
	good := []string{"a", "b/c", "b/d e", "...", "..x", "x..", ".hidden", "-rf", "con", "a:b", `back\slash`, "line\nbreak",
		"\u202egnp.exe", strings.Repeat("n", 255), "C", "c"}
	bad := []string{"", "/", "/etc/passwd", "..", "../x", "a/../../x", "b/..", "b/./c", ".", "b//c", "b/", "./a",
		"nul\x00", "\xff", strings.Repeat("n", 256), strings.Repeat("d/", 40) + "f",
		strings.Repeat("abcdefgh/", 200) + "f", "a/below-a-file", "a", "b"}
	for _, name := range append(good, bad...) {
		if err := a.Begin(0, 0o644, name); err != nil {
			t.Fatal(err)
		}
		if err := a.Data([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []fs.FileMode{fs.ModeSymlink, fs.ModeNamedPipe, fs.ModeSocket, fs.ModeIrregular} {
		if err := a.Begin(kind, 0o644, "special"); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(true); err != nil {
		t.Fatal(err)
	}
	if len(a.Kept) != len(good) || len(a.Refused) != len(bad)+4 {
		t.Errorf("%d kept, %d refused:\n%+v\n%+v", len(a.Kept), len(a.Refused), a.Kept, a.Refused)
	}
	held(t, r.Dir(), len(good))
}

// held checks that a run's folder has this number of artifacts and nothing else.
func held(t testing.TB, dir string, want int) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(filepath.Dir(filepath.Dir(dir)), func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".owners" { // the store's index
			return fs.SkipDir
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(rel, ArtifactsDir+"/"):
			n++
			if !d.Type().IsRegular() {
				t.Errorf("%s is %v", rel, d.Type())
			}
		case strings.Contains(rel, "/"):
			t.Errorf("%s lies outside", rel)
		}
		return nil
	})
	if err != nil || n != want {
		t.Errorf("%d artifacts, want %d: %v", n, want, err)
	}
}

func TestArtifactBounds(t *testing.T) {
	r := newRun(t)
	a := r.Artifacts(10, nil)
	begin := func(name string) {
		t.Helper()
		if err := a.Begin(0, 0o600, name); err != nil {
			t.Fatal(err)
		}
	}
	begin("a")
	if err := a.Data([]byte("12345")); err != nil {
		t.Fatal(err)
	}
	begin("b")
	if err := a.Data([]byte("123")); err != nil {
		t.Fatal(err)
	}
	if err := a.Data([]byte("456")); err != nil { // with b, 11 in total
		t.Fatal(err)
	}
	if err := a.Large("c"); err != nil {
		t.Fatal(err)
	}
	begin("d")
	if err := a.Data([]byte("12345")); err != nil {
		t.Fatal(err)
	}
	begin("e")
	want := []Refusal{{"b", "is beyond 10 bytes in all", true}, {"c", "is beyond 10 bytes in all", true}}
	if err := a.Close(true); err != nil || len(a.Kept) != 3 || a.Kept[1].Path != "d" || a.Kept[1].Size != 5 ||
		!slices.Equal(a.Refused, want) {
		t.Errorf("%v %+v %+v", err, a.Kept, a.Refused)
	}
	held(t, r.Dir(), 3)

	many := newRun(t)
	a = many.Artifacts(10, nil)
	for i := range maxArtifacts + maxRefusals + 7 {
		begin(fmt.Sprint(i))
	}
	last := Refusal{"/out", "7 more did not come back either", true}
	if err := a.Close(true); err != nil || len(a.Kept) != maxArtifacts || len(a.Refused) != maxRefusals+1 ||
		a.Refused[maxRefusals] != last {
		t.Errorf("%v %d %d %+v", err, len(a.Kept), len(a.Refused), a.Refused[len(a.Refused)-1])
	}
	if err := os.RemoveAll(many.Dir()); err != nil {
		t.Fatal(err)
	}

	cut := newRun(t)
	a = cut.Artifacts(100, nil)
	begin("half")
	if err := a.Data([]byte("123")); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(false); err != nil || len(a.Kept) != 0 || len(a.Refused) != 1 {
		t.Errorf("%v %+v %+v", err, a.Kept, a.Refused)
	}
	held(t, cut.Dir(), 0)

	endless := newRun(t)
	a = endless.Artifacts(100, nil)
	var err error
	for i := 0; err == nil && i < 1e6; i++ {
		err = a.Begin(fs.ModeSymlink, 0, "x")
	}
	if !errors.Is(err, ErrEnough) || len(a.Refused) > 2*maxRefusals {
		t.Errorf("%v after %d", err, len(a.Refused))
	}
	if err := os.RemoveAll(endless.Dir()); err != nil {
		t.Fatal(err)
	}
}

func FuzzArtifacts(f *testing.F) {
	f.Add("a", "b/c", "../x", []byte("data"))
	f.Add("a/b", "a", "a/b/../c", []byte(""))
	f.Fuzz(func(t *testing.T, one, two, three string, data []byte) {
		r := newRun(t)
		a := r.Artifacts(1<<10, nil)
		for _, name := range []string{one, two, three} {
			if a.Begin(0, 0o644, name) != nil || a.Data(data) != nil {
				break
			}
		}
		if err := a.Close(true); err != nil {
			t.Error(err)
		}
		held(t, r.Dir(), len(a.Kept))
		r.closeFiles()
	})
}
