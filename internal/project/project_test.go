package project

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/changes"
	"github.com/unitask/unitask/internal/realpath"
)

// discard takes files as a machine does.
type discard struct{}

func (discard) Put(_ guest.File, content io.Reader) error {
	if content == nil {
		return nil
	}
	_, err := io.Copy(io.Discard, content)
	return err
}

// brought returns what a session got: files of the host's folder, by path. A text "-> X" is a link.
func brought(t *testing.T, host string, files map[string]string) *Manifest {
	t.Helper()
	dir := t.TempDir()
	r, err := Record(discard{}, dir, host, "/work")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	list := &Listing{Time: "1000.500000000", Entries: []Entry{{Kind: KindFolder, Inode: 1}}}
	for name, text := range files {
		f := guest.File{Path: "/work/" + name, Mode: 0o644, Size: int64(len(text))}
		if target, link := strings.CutPrefix(text, "-> "); link {
			f.Mode, f.Target, f.Size = fs.ModeSymlink, target, 0
		}
		if strings.HasPrefix(text, "#!") {
			f.Mode = 0o755
		}
		var content io.Reader
		if f.Target == "" {
			content = strings.NewReader(text)
		}
		if err := r.Put(f, content); err != nil {
			t.Fatal(err)
		}
		if above := folderOf(name); above != "" {
			list.Entries = append(list.Entries, Entry{Kind: KindFolder, Path: above, Inode: uint64(above[0])})
		}
	}
	if err := r.Save(dir, "s", "", list); err != nil {
		t.Fatal(err)
	}
	b, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// listing returns the output of ListScript for lines of a kind with its properties, a blank and a path.
func listing(lines ...string) []byte {
	text := "2000.000000001\nd1\x00\x00"
	for _, line := range lines {
		at := strings.LastIndex(line, " ")
		text += line[:at] + "\x00" + line[at+1:] + "\x00"
	}
	return []byte(text)
}

// compared returns the report of a listing in which new files have these texts.
func compared(t *testing.T, b *Manifest, texts map[string]string, lines ...string) *Report {
	t.Helper()
	l, err := ParseListing(listing(lines...))
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Compare(l)
	if err != nil || c.Again {
		t.Fatalf("again: %v, %v", c.Again, err)
	}
	digests := map[string]Digest{}
	for _, name := range c.Wanted {
		sum := sha256.Sum256([]byte(texts[name]))
		digests[name] = sum[:]
	}
	r := &Report{Session: "s", Host: b.Host, Changes: c.End(digests), Ignored: c.Ignored}
	var all, out bytes.Buffer
	for _, name := range r.Send() {
		all.WriteString(texts[name])
	}
	if err := r.Write(&out, &all); err != nil {
		t.Fatal(err)
	}
	kept, err := os.Create(filepath.Join(t.TempDir(), "texts"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kept.Close() })
	if r, err = Read(&out, kept); err != nil {
		t.Fatal(err)
	}
	return r
}

func brief(list []Change) string {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "%s %s %s;", c.Status(), c.From, c.Path)
	}
	return b.String()
}

func TestCompare(t *testing.T) {
	b := brought(t, "/h", map[string]string{"a": "one\n", "b": "two\n", "c": "three\n", "d/e": "x\n", "l": "-> a",
		".gitignore": "out\n*.o\n", "same": "s\n"})
	r := compared(t, b, map[string]string{"a": "ONE\n", "b": "two\n", "moved": "three\n", "same": "s\n", "new": "n\n"},
		"f644 4 1999.0 a", "f755 4 1999.0 b", "=  .gitignore", "f644 6 1999.0 moved", "lb l", "f644 2 1001.0 same",
		"f644 2 1999.0 new", "f644 2 1999.0 x.o", "d9 out", "f644 1 1999.0 out/y", "d100 d", "= d/e")
	const want = "modified  a;mode  b;modified  l;renamed c moved;added  new;"
	if got := brief(r.Changes); got != want || r.Ignored != 2 {
		t.Errorf("%s %d", got, r.Ignored)
	}
	shown, err := r.Show(b)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(shown[0].Text, "-one\n+ONE\n") || shown[3].Text !=
		"diff --git a/c b/moved\nrename from c\nrename to moved\n" {
		t.Errorf("%v", shown)
	}
}

// A folder that has moved, or a clock that was set back, asks for a listing of everything.
func TestCompareAgain(t *testing.T) {
	b := brought(t, "/h", map[string]string{"d/e": "x\n"})
	for name, text := range map[string]string{"a moved folder": string(listing("d7 d", "= d/e")),
		"a clock": strings.Replace(string(listing("d100 d", "= d/e")), "2000", "900", 1)} {
		l, err := ParseListing([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if c, err := b.Compare(l); err != nil || !c.Again {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever a machine reports about its files, no name leads out of the folder, and only texts with the right digest are
// used.
func TestAttackListing(t *testing.T) {
	for name, text := range map[string]string{
		"a path that leads out": string(listing("f644 1 1.0 ../x")),
		"an absolute path":      string(listing("f644 1 1.0 /etc/x")),
		"a name twice":          string(listing("f644 1 1.0 x", "lb x")), "a negative size": string(listing("f644 -1 1.0 x")),
		"an unknown kind": string(listing("z x")), "no time": "d1\x00\x00", "a cut": string(listing("f644 1 1.0 x")) + "f",
		"a long link":              string(listing("l" + strings.Repeat("a", 4096) + " x")),
		"a size that is no number": string(listing("f644 1e9 1.0 x")),
		"a file in .git":           string(listing("f644 1 1.0 .git/config")),
		"no folder":                "1.0\n", "a link as the folder": "1.0\nlx\x00\x00", "nothing": "",
		"deep": string(listing("f644 1 1.0 " + strings.Repeat("a/", 300) + "x")),
	} {
		_, err := ParseListing([]byte(text))
		attack.Check(t, "project: a listing with "+name, "refused", outcome(err))
	}
	sum := strings.Repeat("ab", 32)
	for name, text := range map[string]string{"another name": sum + "  ./y\x00",
		"one more": sum + "  ./x\x00" + sum + "  ./x\x00",
		"none":     "", "a short digest": "abcd  ./x\x00", "an escape": "\\" + sum + "  ./x\x00"} {
		_, err := ParseDigests([]byte(text), []string{"x"})
		attack.Check(t, "project: digests with "+name, "refused", outcome(err))
	}
	digest := sha256.Sum256([]byte("right"))
	for name, text := range map[string]string{"another text": "wrong", "a short one": "rig", "a long one": "righter"} {
		r := Report{Changes: []Change{{Path: "x", Sent: true,
			After: &State{Kind: IsFile, Size: 5, Digest: fmt.Sprintf("%s%x", DigestPrefix, digest)}}}}
		err := r.Check(strings.NewReader(text))
		attack.Check(t, "project: "+name, "true", fmt.Sprint(errors.Is(err, ErrMoving)))
	}
}

func outcome(err error) string {
	if err != nil {
		return "refused"
	}
	return "read"
}

func TestMerge(t *testing.T) {
	const base = "1\n2\n3\n4\n5\n"
	for _, c := range []struct{ ours, theirs, want string }{
		{"one\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", "one\n2\n3\n4\nfive\n"},
		{"1\n2\n3\n4\n5\n6\n", "0\n1\n2\n3\n4\n5\n", "0\n1\n2\n3\n4\n5\n6\n"},
		{"1\nx\n3\n4\n5\n", "1\nx\n3\n4\n5\n", "1\nx\n3\n4\n5\n"},
		{"1\nx\n3\n4\n5\n", "1\ny\n3\n4\n5\n", ""},
		{"1\nx\n3\n4\n5\n", "1\n2\ny\n4\n5\n", ""}, // they touch
		{"1\n4\n5\n", "1\n2\n3\nnew\n4\n5\n", ""},
		{"", "1\n2\n3\n4\n5\n6\n", ""},
	} {
		got, ok := merge(base, c.ours, c.theirs)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%q and %q: %q", c.ours, c.theirs, got)
		}
	}
}

// write creates a folder of the host.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := realpath.Of(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, link := strings.CutPrefix(text, "-> "); link {
			err = os.Symlink(target, name)
		} else {
			err = os.WriteFile(name, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// read returns a folder's files.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		if d.Type() == fs.ModeSymlink {
			target, err := os.Readlink(name)
			files[rel] = "-> " + target
			return err
		}
		text, err := os.ReadFile(name)
		files[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A session's changes meet those of the host: unchanged files are replaced, others merged, and conflicts stay beside.
func TestPropose(t *testing.T) {
	files := map[string]string{"plain": "a\n", "merge": "1\n2\n3\n4\n", "clash": "1\n", "gone": "g\n", "gone2": "g2\n",
		"old": "renamed\n", "lost": "l\n", "Makefile": "m\n", "dir/x": "x\n"}
	dir := write(t, files)
	b := brought(t, dir, files)
	for name, text := range map[string]string{"merge": "1\n2\n3\nhost\n", "clash": "host\n", "gone2": "host\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "lost")); err != nil {
		t.Fatal(err)
	}
	now := map[string]string{"plain": "b\n", "merge": "one\n2\n3\n4\n", "clash": "session\n", "new/name": "renamed\n",
		"lost": "session\n", "Makefile": "evil\n", ".envrc": "evil\n", "tool": "#!\n"}
	r := compared(t, b, now, "f644 2 1999.0 plain", "f644 10 1999.0 merge", "f644 8 1999.0 clash", "d9 new",
		"f644 8 1999.0 new/name", "f644 8 1999.0 lost", "f644 5 1999.0 Makefile", "f644 5 1999.0 .envrc",
		"f755 3 1999.0 tool", "d100 dir", "= dir/x", "l/etc/passwd leak")
	p, err := r.Propose(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	store := changes.Open(t.TempDir(), &audit.Journal{Log: audit.In(t.TempDir())})
	set, left, err := store.Propose(dir, "session s", "", p.Files)
	if err != nil {
		t.Fatal(err)
	}
	before := read(t, dir)
	if _, err := store.Apply(set.ID); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"plain": "b\n", "merge": "one\n2\n3\nhost\n", "clash": "host\n",
		"clash.conflict": "session\n",
		"gone2":          "host\n", "new/name": "renamed\n", "lost.conflict": "session\n", "Makefile": "m\n", "dir/x": "x\n"}
	if got := read(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
	slices.Sort(p.Conflicts)
	if got := fmt.Sprint(p.Conflicts, p.Merged); got != "[clash gone2 lost] [merge]" {
		t.Error(got)
	}
	names := []string{}
	for _, l := range append(p.Left, left...) {
		names = append(names, l.Path)
	}
	slices.Sort(names)
	attack.Check(t, "project: what is not written unnamed", "[.envrc Makefile clash gone2 leak lost tool]",
		fmt.Sprint(names))
	_, _, err = store.Propose(dir, "session t", "", p.Files) // as another session would that looked at the same time
	attack.Check(t, "project: two sessions that apply at once", "refused", outcome(err))
	if _, err := store.Undo(set.ID); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir); fmt.Sprint(got) != fmt.Sprint(before) {
		t.Errorf("%q, want %q", got, before)
	}
}
