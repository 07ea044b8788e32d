package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// Which folder --project brings, if there are other marks above or below the project.
func TestAttackProjectRoot(t *testing.T) {
	for _, c := range []struct {
		name  string
		files []string // a name that begins with ! belongs to another user
		home  string   // unitask's
		user  string   // the user's
		want  string
	}{
		{"a repository", []string{"p/.git", "p/src/package.json"}, "", "u", "p"},
		{"a package", []string{"p/package.json"}, "", "u", "p"},
		{"neither", nil, "", "u", "p/src"},
		{"a repository by somebody else above", []string{"!.git", "p/package.json"}, "", "u", "p"},
		{"a package by somebody else above", []string{"!package.json"}, "", "u", "p/src"},
		{"the user's home as a repository", []string{".git"}, "", "", "refused"},
		{"a repository that the user's home lies in", []string{".git"}, "", "home/u", "refused"},
		{"a repository that unitask's home lies in", []string{"p/.git"}, "p/.unitask", "u", "refused"},
		{"unitask's home as the code's folder", nil, "p/src", "u", "refused"},
		{"unitask's home by a link", []string{"p/.git", "link>p/state"}, "link", "u", "refused"},
		{"unitask's home beside it", []string{"p/.git"}, "q/.unitask", "u", "p"},
		{"a folder with a like name", []string{"p/.git"}, "p-home", "u", "p"},
	} {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		at := func(name string) string { return filepath.Join(dir, name) }
		for _, sub := range []string{"p/src", "p/state", "p/.unitask", "q/.unitask", "p-home", "home/u", "u"} {
			if err := os.MkdirAll(at(sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		skip := false
		for _, name := range c.files {
			name, others := strings.CutPrefix(name, "!")
			if link, to, is := strings.Cut(name, ">"); is {
				err = os.Symlink(at(to), at(link))
			} else if err = os.WriteFile(at(name), nil, 0o644); err == nil && others {
				skip = os.Getuid() != 0
				_ = os.Chown(at(name), 12345, 12345)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if skip {
			t.Logf("%s: wants root, to be somebody else", c.name)
			continue
		}
		t.Setenv("HOME", at(c.user))
		home := ""
		if c.home != "" {
			home = at(c.home)
		}
		got, err := projectRoot(codesProject, at("p/src/a.js"), home)
		if err != nil {
			got = "refused"
		} else {
			got, _ = filepath.Rel(dir, got)
		}
		attack.Check(t, "--project: "+c.name, c.want, got)
	}
}
