package skill

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

const front = "---\nname: demo\ndescription: A demo.\n"

func TestParse(t *testing.T) {
	m, err := Parse([]byte("---\r\nname: demo-2\r\ndescription: >\r\n  Two\r\n  lines\r\nlicense: MIT\r\n" +
		"allowed-tools: Bash(git:*) Read\r\nmetadata:\r\n  version: \"1\"\r\n" +
		"  unitask-allow-net: api.example.com  *.example.org\r\n  unitask-packages: pip:requests\r\n---\r\nText\r\n---\r\n"))
	if err != nil || fmt.Sprint(m) != "{demo-2 Two lines [api.example.com *.example.org] [pip:requests]}" {
		t.Errorf("%v %v", m, err)
	}
}

// A hostile SKILL.md is refused, and quickly.
func TestAttackSkillManifest(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "no front matter": "# Demo\n", "an open one": front, "no name": "---\ndescription: x\n---\n",
		"a path": "---\nname: ../x\ndescription: x\n---\n", "a long name": "---\nname: " + strings.Repeat("x", 65) +
			"\ndescription: x\n---\n", "no description": "---\nname: demo\n---\n",
		"all hosts":    front + "metadata:\n  unitask-allow-net: '*'\n---\n",
		"a URL":        front + "metadata:\n  unitask-allow-net: https://example.com/x\n---\n",
		"a list":       front + "metadata:\n  unitask-allow-net: [a.example.com]\n---\n",
		"many hosts":   front + "metadata:\n  unitask-allow-net: " + strings.Repeat("a.example.com ", 101) + "\n---\n",
		"an option":    front + "metadata:\n  unitask-packages: --index-url=x\n---\n",
		"two names":    front + "name: other\n---\n",
		"many keys":    front + strings.Repeat("a:\n", 20_000) + "---\n", // each pair was an error: gigabytes
		"long front":   front + strings.Repeat("# x\n", 20_000) + "---\n",
		"an alias":     front + "x: &a {}\nmetadata: *a\n---\n",
		"a merge":      front + "x: &a {unitask-allow-net: a.example.com}\nmetadata: {<<: *a, unitask-allow-net: [x]}\n---\n",
		"huge":         front + "---\n" + strings.Repeat("x", maxManifest),
		"bytes":        front + "x: \xff\n---\n",
		"many aliases": front + "x: &a [1,1,1,1,1,1,1,1,1]\ny: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nmetadata: *b\n---\n",
	} {
		_, err := Parse([]byte(text))
		attack.Check(t, "skill: "+name, "refused", map[bool]string{true: "refused", false: "taken"}[err != nil])
	}
}

// write writes files of a skill; it has a SKILL.md unless that is "-".
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A trusted skill is known by its files, also by their executable bits; .git and caches do not count.
func TestTrust(t *testing.T) {
	dir, to := testdir.Private(t), testdir.Private(t)
	write(t, dir, map[string]string{File: front + "---\n", "scripts/a.py": "1", "scripts/b.txt": "", "scripts/c.sh": "",
		".git/config": "x", "scripts/__pycache__/a.pyc": "x"})
	s, err := Read(dir, to)
	if err != nil || len(s.Files) != 4 || fmt.Sprint(s.Scripts()) != "[scripts/a.py scripts/c.sh]" {
		t.Fatalf("%+v %v", s, err)
	}
	if _, err := os.Stat(filepath.Join(to, ".git")); err == nil {
		t.Error(".git was copied")
	}
	for name, want := range map[string]string{"a.py": "scripts/a.py", "scripts/c.sh": "scripts/c.sh",
		"b.txt": "scripts/b.txt",
		"":      "", "../a.py": "", "none": "", "/etc/passwd": ""} {
		if got, err := s.Script(name); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v", name, got, err)
		}
	}
	store := testdir.Private(t)
	trust := Trust{filepath.Join(store, "skills.json"), filepath.Join(store, "lock")}
	if err := trust.Set(s, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	was, err := trust.Of(s.Source)
	if err != nil || was == nil || len(was.Changed(s.Files)) != 0 {
		t.Fatalf("%+v %v", was, err)
	}
	write(t, dir, map[string]string{"scripts/a.py": "2", "new": ""})
	if err := os.Chmod(filepath.Join(dir, "scripts/b.txt"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "scripts/c.sh")); err != nil {
		t.Fatal(err)
	}
	now, err := Read(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(was.Changed(now.Files), ", "); got !=
		"changed: scripts/a.py, changed: scripts/b.txt, gone: scripts/c.sh, new: new" {
		t.Error(got)
	}
	if there, err := trust.Forget(s.Source); !there || err != nil {
		t.Error(there, err)
	}
	if there, err := trust.Forget(s.Source); there || err != nil {
		t.Error(there, err)
	}
}

// A skill's links lead nowhere.
func TestAttackSkillLinks(t *testing.T) {
	for name, target := range map[string]string{"out": "/etc/passwd", "inside": File, "a folder": "/etc",
		"none": "nosuch"} {
		dir := testdir.Private(t)
		write(t, dir, map[string]string{File: front + "---\n"})
		if err := os.Symlink(target, filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		_, err := Read(dir, testdir.Private(t))
		attack.Check(t, "skill: a link, "+name, "refused", map[bool]string{true: "refused", false: "taken"}[err != nil])
	}
}

// A skill's folder is bounded, and nothing in it blocks. A folder without a SKILL.md is not read at all.
func TestAttackSkillFolder(t *testing.T) {
	for name, fill := range map[string]func(dir string) error{
		"a pipe": func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600) },
		"depth":  func(dir string) error { return os.MkdirAll(dir+strings.Repeat("/deep", 300), 0o755) },
		"a large file": func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "x"), nil, 0o600), os.Truncate(filepath.Join(dir, "x"), 1<<40))
		},
		"a manifest that is a folder": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, File)), os.Mkdir(filepath.Join(dir, File), 0o755))
		},
	} {
		dir := testdir.Private(t)
		write(t, dir, map[string]string{File: front + "---\n"})
		if err := fill(dir); err != nil {
			t.Fatal(err)
		}
		_, err := Read(dir, testdir.Private(t))
		attack.Check(t, "skill: "+name, "refused", map[bool]string{true: "refused", false: "taken"}[err != nil])
	}
	dir := testdir.Private(t)
	write(t, dir, map[string]string{"a/b/c": "", "d/e": ""})
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for most, want := range map[int]string{5: "<nil>", 4: "it has more than 10000 files and folders",
		1: "it has more than 10000 files and folders"} {
		s := &Skill{Files: map[string]string{}, bytes: 1, entries: most}
		attack.Check(t, fmt.Sprint("skill: one entry more than ", most), want, fmt.Sprint(s.folder(root, ".")))
	}
	_, err = Read("/proc", "") // some of its files never end
	attack.Check(t, "skill: no skill", "there is no SKILL.md", fmt.Sprint(err))
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(front + "metadata:\n  unitask-allow-net: a.example.com\n  unitask-packages: npm:x@1\n---\ntext"))
	f.Add([]byte("---\n---\n---"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Parse(text)
		if err == nil && (m.Name == "" || strings.ContainsAny(m.Name, "/.\x00") || m.Description == "" ||
			len(m.Hosts) > maxWords) {
			t.Errorf("%+v", m)
		}
	})
}
