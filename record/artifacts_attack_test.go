package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

type attackArtifactsRow struct {
	name, path string
	kind       fs.FileMode
	want       string // kept, or why not
}

// attackArtifactsRows are the cases of TestAttackArtifacts.
func attackArtifactsRows(kept string) []attackArtifactsRow {
	return []attackArtifactsRow{
		{"a plain name", "a", 0, kept},
		{"a name in folders", "f/g/h", 0, kept},
		{"no name", "", 0, "has a path of no or more than 1024 bytes"},
		{"the parent", "..", 0, "has a path that can't be"},
		{"a file of the parent", "../run.json", 0, "has a path that can't be"},
		{"up on the way", "a1/../../run.json", 0, "has a path that can't be"},
		{"up at the end", "a1/..", 0, "has a path that can't be"},
		{"here", ".", 0, "has a path that can't be"},
		{"here on the way", "a1/./b", 0, "has a path that can't be"},
		{"an absolute path", "/etc/passwd", 0, "has a path that can't be"},
		{"the root", "/", 0, "has a path that can't be"},
		{"two slashes", "a1//b", 0, "has a path that can't be"},
		{"a slash at the end", "a1/", 0, "has a path that can't be"},
		{"NUL", "nul\x00.txt", 0, "has a name that is no text"},
		{"NUL at the end", "lock\x00", 0, "has a name that is no text"},
		{"invalid UTF-8", "\xff\xfe", 0, "has a name that is no text"},
		{"too long a form of a slash", "..\xc0\xafx", 0, "has a name that is no text"},
		{"half a surrogate", "\xed\xa0\x80", 0, "has a name that is no text"},
		{"a name of 255 bytes", strings.Repeat("n", 255), 0, kept},
		{"a name of 256 bytes", strings.Repeat("n", 256), 0, "has a path that can't be"},
		{"a path of more than 1024 bytes", strings.Repeat("abcdefgh/", 120) + "f", 0,
			"has a path of no or more than 1024 bytes"},
		{"33 folders deep", strings.Repeat("d/", 32) + "f", 0, "lies more than 32 folders deep"},
		{"the same again", "a", 0, "file exists"},
		{"a folder's name", "b", 0, "file exists"},
		{"below a file", "a/x", 0, "file exists"},
		{"a case twin", "A", 0, kept},
		{"a twin in another form of Unicode", "e\u0301", 0, kept},
		{"its other form", "\u00e9", 0, kept},
		{"a dotfile", ".git/hooks/post-commit", 0, kept}, // in the record; --out does not copy it
		{"three dots", "...", 0, kept},
		{"ESC in a name", "\x1b]0;x\a", 0, kept},
		{"a newline in a name", "x\n/../y", 0, "has a path that can't be"},
		{"a newline, forging a line", "x\nartifact y", 0, kept},
		{"text turned around", "\u202egpj.exe", 0, kept},
		{"a device of DOS", "CON", 0, kept}, // an ordinary name here
		{"a stream of NTFS", "a:b", 0, kept},
		{"a path of DOS", `..\x`, 0, kept},
		{"an option", "-rf", 0, kept},
		{"the name of the record", "run.json", 0, kept}, // in a separate folder
		{"a link", "l1", fs.ModeSymlink, "is a link"},
		{"a pipe", "p1", fs.ModeNamedPipe, "is not a regular file"},
		{"a socket", "s1", fs.ModeSocket, "is not a regular file"},
		{"a device", "d1", fs.ModeDevice, "is not a regular file"},
		{"a kind that is not known", "k1", fs.ModeIrregular, "is not a regular file"},
		{"a folder as a file", "f1", fs.ModeDir, "is not a regular file"},
	}
}

// A hostile guest invents the entries of /out: names, kinds, sizes. A refused entry has a reason. Nothing is made
// outside of the run's folder, and only files are made.
func TestAttackArtifacts(t *testing.T) {
	const kept = "kept"
	for _, c := range attackArtifactsRows(kept) {
		r := newRun(t)
		a := r.Artifacts(1<<20, nil)
		for _, before := range []string{"a", "b/c"} {
			if c.name == "a plain name" && before == "a" {
				continue
			}
			if err := errors.Join(a.Begin(0, 0o644, before), a.Data([]byte("first"))); err != nil {
				t.Fatal(err)
			}
		}
		n := len(a.Kept)
		if a.file != nil {
			n++
		}
		if err := errors.Join(a.Begin(c.kind, 0o4777, c.path), a.Data([]byte("x")), a.Close(true)); err != nil {
			t.Fatal(err)
		}
		got := kept
		switch {
		case len(a.Refused) == 1:
			got = a.Refused[0].Reason
		case len(a.Kept) != n+1:
			got = "lost"
		}
		attack.Check(t, "artifact: "+c.name, c.want, got)
		for _, k := range a.Kept {
			st, err := os.Stat(filepath.Join(r.Dir(), ArtifactsDir, k.Path))
			if err != nil || st.Mode() != 0o600 {
				t.Errorf("%s: %q is %v, %v", c.name, k.Path, st, err)
			}
		}
		held(t, r.Dir(), len(a.Kept))
		r.closeFiles()
	}
}

// A guest that sends without end reaches a limit, and the result says which.
func TestAttackArtifactFloods(t *testing.T) {
	const most = 1 << 20
	for _, c := range []struct {
		name  string
		flood func(a *Artifacts) error // one more; it ends with an error
		kept  int
		says  string
	}{
		{"files without end", func() func(a *Artifacts) error {
			n := 0
			return func(a *Artifacts) error { n++; return a.Begin(0, 0o644, fmt.Sprint(n)) }
		}(), maxArtifacts, "is beyond 1000 files"},
		{"one file without end", func(a *Artifacts) error {
			if a.file == nil {
				_ = a.Begin(0, 0o644, "big")
			}
			return a.Data(make([]byte, 64<<10))
		}, 0, "is beyond 1048576 bytes in all"},
		{"bytes of files that are refused", func(a *Artifacts) error {
			return errors.Join(a.Begin(0, 0o644, ".."),
				a.Data(make([]byte, 64<<10)))
		}, 0, "has a path that can't be"},
		{"links without end", func(a *Artifacts) error { return a.Begin(fs.ModeSymlink, 0, "l") }, 0, "is a link"},
		{"bad names without end", func(a *Artifacts) error { return a.Begin(0, 0, "../x") }, 0, "has a path that can't be"},
	} {
		r := newRun(t)
		a := r.Artifacts(most, nil)
		var err error
		for range 1 << 20 {
			if err = c.flood(a); err != nil {
				break
			}
		}
		got := fmt.Sprint(err)
		if errors.Is(err, ErrEnough) {
			got = "ended"
		}
		attack.Check(t, "artifacts: "+c.name, "ended", got)
		if err := a.Close(false); err != nil || len(a.Kept) != c.kept || len(a.Refused) == 0 ||
			len(a.Refused) > maxRefusals+2 || a.Refused[0].Reason != c.says ||
			!strings.HasPrefix(a.Refused[len(a.Refused)-1].Reason, "not all of it came") {
			t.Errorf("%s: %v, %d kept, %d refused: %+v", c.name, err, len(a.Kept), len(a.Refused),
				a.Refused[max(len(a.Refused)-1, 0):])
		}
		held(t, r.Dir(), c.kept)
		r.closeFiles()
	}
}

// Paths without common folders create 31 folders each. The total number is limited, and files that need no more folders
// are kept.
func TestAttackArtifactFolders(t *testing.T) {
	for name, deep := range map[string]int{"31 deep": 31, "one deep": 1} {
		r := create(t, Open(t.TempDir()), time.Now())
		a := r.Artifacts(1<<20, nil)
		for i := range 900 {
			if err := a.Begin(0, 0o600, strings.Repeat(fmt.Sprint(i, "/"), deep)+"f"); errors.Is(err, ErrEnough) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Close(true); err != nil {
			t.Fatal(err)
		}
		folders := 0
		if err := filepath.WalkDir(filepath.Join(r.Dir(), ArtifactsDir), func(_ string, d fs.DirEntry, err error) error {
			if d.IsDir() {
				folders++
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		want, refused := "within the bound, 129 kept, refused: is beyond 4000 folders in all", ""
		if deep == 1 {
			want = "within the bound, 900 kept, refused: "
		}
		if len(a.Refused) > 0 {
			refused = a.Refused[0].Reason
		}
		within := "within the bound"
		if folders > maxFolders+1 {
			within = fmt.Sprint(folders, " folders")
		}
		attack.Check(t, "folders that the paths of artifacts make, "+name, want,
			fmt.Sprintf("%s, %d kept, refused: %s", within, len(a.Kept), refused))
	}
}

// A guest that declares a file as too large and does not send it gets no more names than with a file that it sends.
func TestAttackArtifactsLarge(t *testing.T) {
	redactor, err := NewRedactor(Secrets{Given: map[string]string{"A": "top-secret-value"}})
	if err != nil {
		t.Fatal(err)
	}
	a := newRun(t).Artifacts(10, redactor)
	for _, c := range []struct{ name, path, want string }{
		{"a plain name", "a", "a is beyond 10 bytes in all, missed true"},
		{"the parent", "../run.json", "../run.json has a path that can't be, missed false"},
		{"a name of no text", "\xff", "\ufffd has a name that is no text, missed false"},
		{"33 folders deep", strings.Repeat("d/", 32) + "f",
			strings.Repeat("d/", 32) + "f lies more than 32 folders deep, missed false"},
		{"a secret for a name", "top-secret-value", Redacted + " is beyond 10 bytes in all, missed true"},
	} {
		if err := a.Large(c.path); err != nil {
			t.Fatal(err)
		}
		last := a.Refused[len(a.Refused)-1]
		attack.Check(t, "a file that is too large, with "+c.name, c.want,
			fmt.Sprintf("%s %s, missed %v", last.Path, last.Reason, last.Missed))
	}
	n := 0
	for err = nil; err == nil && n < 1<<20; n++ {
		err = a.Large("a")
	}
	attack.Check(t, "a guest that names files without end that are too large",
		fmt.Sprint(maxOffered-5+1, " ", ErrEnough, " ", maxRefusals), fmt.Sprint(n, " ", err, " ", len(a.Refused)))
	if err := a.Close(true); err != nil {
		t.Fatal(err)
	}
}
