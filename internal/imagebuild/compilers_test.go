package imagebuild

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// The generated description of an image with compilers is valid and is written once. Afterwards it belongs to the user.
func TestDescribeCompilers(t *testing.T) {
	for _, system := range []string{policy.Pip, policy.Npm} {
		dir := filepath.Join(t.TempDir(), "environments")
		l := language.OfSystem(system)
		if err := describeCompilers(dir, l, ""); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, l.Packages.Compilers+imagefile.Extension)
		env, err := imagefile.Read(file, dir, language.Images())
		if err != nil || language.OfImage(env.From) != l || env.Name != l.Packages.Compilers ||
			!slices.Equal(env.Debian, l.Packages.Debian) {
			t.Errorf("%s: %+v %v", system, env, err)
		}
		const own = "from = \"mine\"\n"
		if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := describeCompilers(dir, l, ""); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != own {
			t.Errorf("%s: the user's file is now %q %v", system, text, err)
		}
		if err := errors.Join(os.Remove(file), os.Symlink("nowhere", file)); err != nil {
			t.Fatal(err)
		}
		if err := describeCompilers(dir, l, ""); err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink(file); err != nil || to != "nowhere" {
			t.Errorf("%s: a link of the user's is gone: %v", system, err)
		}
	}
}

// Each version of a language has an image with compilers of its own, and is compiled in no other one.
func TestCompilersOfVersion(t *testing.T) {
	dir, l := t.TempDir(), language.OfSystem(policy.Pip)
	for of, want := range map[string]struct{ name, from string }{
		"python": {"python-compilers", "python"}, "data": {"python-compilers", "python"},
		"python@3.11": {"python-compilers-3-11", "python@3.11"}, "data@3.11": {"python-compilers-3-11", "python@3.11"},
	} {
		if err := describeCompilers(dir, l, of); err != nil {
			t.Fatal(err)
		}
		env, err := imagefile.Read(filepath.Join(dir, want.name+imagefile.Extension), dir, language.Images())
		if err != nil || env.From != want.from || env.Name != want.name {
			t.Errorf("%s: %+v %v", of, env, err)
		}
	}
	for base, compiled := range map[string]bool{"python@3.11": true, "data@3.11": true, "python": false, "node": false,
		"python:3.11": false} {
		if got := compiles(l, "python@3.11", base); got != compiled {
			t.Errorf("over %s: %v", base, got)
		}
	}
}

// The error for a base of another version names the file to change. Removing the compilers' file would not help if
// another file hides the bundled image.
func TestWrongBase(t *testing.T) {
	for _, row := range []struct{ compilers, python, remedy string }{
		{"from = 'python'", "from = 'python@3.11'", "python.toml hides the bundled image"},
		{"from = 'other'", "from = 'node'", "remove the file"},
		{"from = 'python@3.11'", "from = 'node'", "remove the file"},
	} {
		dir, l := t.TempDir(), language.OfSystem(policy.Pip)
		for name, text := range map[string]string{l.Packages.Compilers: row.compilers, "python": row.python,
			"other": "from = 'python@3.11'"} {
			if err := os.WriteFile(filepath.Join(dir, name+imagefile.Extension), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		env, err := imagefile.Read(filepath.Join(dir, l.Packages.Compilers+imagefile.Extension), dir, language.Images())
		if err != nil || compiles(l, "python", env.From) {
			t.Fatalf("%+v: %+v %v", row, env, err)
		}
		if err := wrongBase(env, "python"); !strings.Contains(err.Error(), row.remedy) {
			t.Errorf("%+v: %v", row, err)
		}
	}
}

// Headers are written beside the files of Debian packages, and through none of their links into the host's files.
func TestAttackHeaders(t *testing.T) {
	headers := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(headers, "node"), 0o755),
		os.WriteFile(filepath.Join(headers, "node", "node.h"), []byte("ours"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, link := range map[string]string{"usr": "usr", "the folder of headers": "usr/include",
		"a folder in it": "usr/include/node"} {
		outside, root := t.TempDir(), t.TempDir()
		at := filepath.Join(root, link)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(outside, at)); err != nil {
			t.Fatal(err)
		}
		err := copyHeaders(headers, root)
		left, _ := os.ReadDir(outside)
		attack.Check(t, "a package of Debian has a link to the host's files for "+name, "refused, 0 files",
			fmt.Sprintf("%s, %d files", map[bool]string{true: "refused", false: "taken"}[err != nil], len(left)))
	}
	root := t.TempDir()
	there := filepath.Join(root, "usr/include/nodejs")
	if err := errors.Join(os.MkdirAll(there, 0o755), os.Symlink("nodejs", filepath.Join(root, "usr/include/node")),
		copyHeaders(headers, root)); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(there, "node.h")); err != nil || string(text) != "ours" {
		t.Errorf("behind a link within the image: %q %v", text, err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(there, "node.h"), []byte("theirs"), 0o600),
		copyHeaders(headers, root)); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(there, "node.h")); err != nil || string(text) != "theirs" {
		t.Errorf("a package's own header: %q %v", text, err)
	}
}
