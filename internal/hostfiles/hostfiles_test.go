package hostfiles

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// folder returns a folder with links resolved, and with the given links in it ("name -> target").
func folder(t *testing.T, links ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		name, target, _ := strings.Cut(l, " -> ")
		if err := os.Symlink(strings.ReplaceAll(target, "$", dir), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A path leads to the same place, whether a file exists there or not.
func TestLeadsTo(t *testing.T) {
	dir := folder(t, "a -> b", "b -> c/d", "up -> ../x", "root -> /", "loop -> loop", "abs -> $/c",
		"out -> ../../../../../../../../../etc")
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	above := filepath.Dir(dir)
	for name, want := range map[string]string{
		"file": dir + "/file", "nothing": dir + "/nothing", "nothing/below": dir + "/nothing/below",
		"file/below": dir + "/file/below",
		"a":          dir + "/c/d", "b/e": dir + "/c/d/e", "a/../x": dir + "/c/x", "up/y": above + "/x/y",
		"root/no/such": "/no/such",
		"abs/e":        dir + "/c/e",
		"out":          "/etc", "loop": dir + "/loop", "loop/x": dir + "/loop/x", "..": above, "./file": dir + "/file",
	} {
		if got := leadsTo(dir + "/" + name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		f, err := Find(dir+"/"+name, false)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		// Find first cleans the path's text, as for --file.
		if !strings.Contains(name, "/..") && f.Real != want {
			t.Errorf("found %s: %s, want %s", name, f.Real, want)
		}
	}
}

// The file that was found is opened, or none is.
func TestFoundIsOpened(t *testing.T) {
	dir := folder(t)
	name := filepath.Join(dir, "f")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for what, exchange := range map[string]func() error{
		"a link":       func() error { write(dir+"/other", "other"); return os.Symlink("other", name) },
		"another file": func() error { write(name, "other"); return nil },
		"a pipe":       func() error { return syscall.Mkfifo(name, 0o600) },
		"nothing":      func() error { return nil },
	} {
		write(name, "mine")
		f, err := Find(name, false)
		if err != nil || f.Real != name {
			t.Fatal(f, err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if err := exchange(); err != nil {
			t.Fatal(err)
		}
		var s Set
		if err := s.Add(f, "/f", 0); err == nil {
			text := make([]byte, 10)
			n, _ := s.mounts[0].file.Read(text)
			if string(text[:n]) != "mine" {
				t.Errorf("%s: %q was read", what, text[:n])
			}
		}
		s.Close()
		f.Close()
		_ = os.Remove(name)
	}
}

// --project brings the files that git would keep, and node_modules completely.
func TestProject(t *testing.T) {
	dir := folder(t)
	for name, text := range map[string]string{
		".gitignore": "node_modules\ndist\n.env*\n/top\n", ".env": "KEY=1", "sub/.env.local": "", "a.js": "", "dist/a.js": "",
		"top": "", "sub/top": "",
		".git/config": "token", "sub/.git": "gitdir: ..", "sub/.gitignore": "*.map\n", "sub/x.map": "", "x.map": "",
		"node_modules/p/dist/i.js": "", "node_modules/p/.gitignore": "*", "node_modules/p/.env": "",
		"node_modules/p/.git/config": "", "node_modules/big/x": "",
		"out/x": "", "kept/dist/y": "", "kept/.unitaskignore": "!dist\n", ".unitaskignore": "node_modules/big\nout/\n",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Find(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Project = true
	var s Set
	defer s.Close()
	if err := s.Add(f, "/p", 1<<20); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range s.entries {
		if e.from != nil {
			got = append(got, strings.TrimPrefix(e.Path, "/p/"))
		}
	}
	slices.Sort(got)
	want := []string{".gitignore", ".unitaskignore", "a.js", "kept/.unitaskignore", "kept/dist/y", "node_modules/p/.env",
		"node_modules/p/.gitignore",
		"node_modules/p/dist/i.js", "sub/.gitignore", "sub/top", "x.map"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// each is n folders, each in the one before.
func each(n int) (list []string) {
	for i := range n {
		list = append(list, strings.Repeat("d/", i))
	}
	return list
}

// Folders whose ignore files should take forever, or all memory.
func TestAttackIgnoreFiles(t *testing.T) {
	deep := strings.Repeat("d/", 20)
	for _, c := range []struct {
		name, text string
		at         []string // folders with such a file
		files      int      // in the deepest
		want       string
	}{
		{"a usual one", "node_modules/\n*.log\n# comment\n\n", []string{""}, 100, "taken"},
		{"as many patterns as there may be", strings.Repeat("x\n", maxPatterns), []string{""}, 5, "taken"},
		{"a pattern more", strings.Repeat("x\n", maxPatterns+1), []string{""}, 5, "more than 10000 patterns"},
		{"a megabyte of patterns", strings.Repeat("a\n", maxIgnore/2), []string{deep}, 5, "more than 10000 patterns"},
		{"patterns in each of many folders", strings.Repeat("x\n", 200), []string{"", "d/", "d/d/", deep}, 5, "taken"},
		{"too many in all of many folders", strings.Repeat("x\n", maxPatterns/2), []string{"", "d/", deep}, 5,
			"more than 10000 patterns"},
		{"a project's, by git's file", strings.Repeat("x\n", maxPatterns+1), []string{"git:"}, 5, "more than 10000 patterns"},
		{"many patterns for many files", strings.Repeat("*x?[!x]*xxxxxxxxxxxxxxx\n", maxPatterns), []string{""}, 100,
			"too many patterns for this many files"},
		{"a pattern of a megabyte", "*[" + strings.Repeat("x", maxIgnore-10) + "]", []string{""}, 5,
			"a pattern has more than 4096 bytes"},
		{"long patterns that look at every letter", strings.Repeat("*["+strings.Repeat("x", 4000)+"]\n", 250), []string{""},
			100, "too many patterns for this many files"},
		{"long comments in many folders", "#" + strings.Repeat("#", 900<<10), each(20), 5,
			"there are more than 16777216 bytes of patterns"},
	} {
		dir := folder(t)
		if err := os.MkdirAll(filepath.Join(dir, deep), 0o755); err != nil {
			t.Fatal(err)
		}
		project := false
		for _, at := range c.at {
			name := IgnoreFile
			if at, project = strings.CutPrefix(at, "git:"); project {
				name = gitIgnore
			}
			if err := os.WriteFile(filepath.Join(dir, at, name), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for i := range c.files {
			if err := os.WriteFile(filepath.Join(dir, deep, "a"+strconv.Itoa(i)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := Find(dir, true)
		if err != nil {
			t.Fatal(err)
		}
		f.Project = project
		s := Set{matching: maxMatching / 100}
		got := "taken"
		if err := s.Add(f, "/x", 1<<20); err != nil {
			got = err.Error()
			got = got[max(0, strings.LastIndex(got, c.want)):]
		}
		attack.Check(t, "ignore files: "+c.name, c.want, got)
		s.Close()
		f.Close()
	}
}

// holes is a file that consists of a hole, of any size.
type holes struct {
	fs.FileInfo
	size int64
}

func (h holes) Name() string               { return h.FileInfo.Name() }
func (h holes) IsDir() bool                { return false }
func (h holes) Info() (fs.FileInfo, error) { return h, nil }
func (h holes) Type() fs.FileMode          { return 0 }
func (h holes) Mode() fs.FileMode          { return 0o644 }
func (h holes) Size() int64                { return h.size }

// Sizes that overflow when they are added (two files of 5 EiB in a tmpfs) do not count as small.
func TestAttackSizes(t *testing.T) {
	dir := folder(t)
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	var s Set
	w := walk{set: &s, m: &mount{guest: "/x"}}
	for _, name := range []string{"a", "b"} {
		if err := w.entry(nil, holes{st, 5 << 60}, name, []string{name}, ignored{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for what, n := range map[string]int64{"bytes of a folder": w.used, "bytes in all": s.Bytes(),
		"memory": s.Memory(100)} {
		got := "too many"
		if n < 5<<60 {
			got = fmt.Sprint(n)
		}
		attack.Check(t, "two files of 5 EiB: "+what, "too many", got)
	}
}
