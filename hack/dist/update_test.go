package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"aead.dev/minisign"
)

// signed builds a release of this system in a folder.
func signed(version, dir string, by publisher) error {
	name := "unitask_" + version + "_" + runtime.GOOS + "_" + runtime.GOARCH
	program := filepath.Join(dir, name, "unitask")
	err := build(program, version, runtime.GOOS, runtime.GOARCH, by)
	if err == nil {
		err = archive(filepath.Join(dir, name+".tar.gz"), program)
	}
	return cmp.Or(err, sums(dir), by.sign(version, dir))
}

// A release's program replaces itself by the next release, and returns. Then it removes itself and its home.
func TestSelfUpdate(t *testing.T) {
	if testing.Short() {
		t.Skip("builds two programs; not in -short")
	}
	_, private, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := minisign.EncryptKey("secret", private)
	if err != nil {
		t.Fatal(err)
	}
	dir, next, home := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), ".unitask")
	if err := write(filepath.Join(dir, "key"), text); err != nil {
		t.Fatal(err)
	}
	if _, err := openKey(filepath.Join(dir, "key"), ""); err == nil || !strings.Contains(err.Error(), passwordVariable) {
		t.Errorf("without the password: %v", err)
	}
	t.Setenv(passwordVariable, "secret")
	by, err := openKey(filepath.Join(dir, "key"), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..")
	program := filepath.Join(dir, "unitask")
	err = cmp.Or(build(program, "1.2.3", runtime.GOOS, runtime.GOARCH, by), signed("1.3.0", next, by))
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "UNITASK_HOME="+home)
	for _, step := range []struct{ args, want string }{
		{"--version", "unitask v1.2.3\n"},
		{"self update --check --release " + next, "v1.3.0 is there, and this is v1.2.3"},
		{"--version", "unitask v1.2.3\n"},
		{"self update --release " + next, "updated from v1.2.3 to v1.3.0"},
		{"--version", "unitask v1.3.0\n"},
		{"self update --release " + next, "v1.3.0 is the newest release"},
		{"self rollback", "this is v1.2.3 again"},
		{"--version", "unitask v1.2.3\n"},
		{"self rollback", "this is v1.3.0 again"},
	} {
		if out := do(t, dir, env, program, strings.Fields(step.args)...); !strings.Contains(out, step.want) {
			t.Errorf("%s: %q, want %q", step.args, out, step.want)
		}
	}
	t.Run("uninstall", func(t *testing.T) { uninstall(t, program, home, env) })
}

// uninstall removes a program and its home: first what can be made again, then the rest, but nothing of others.
func uninstall(t *testing.T, program, home string, env []string) {
	for _, name := range []string{"images/x/disk", "runs/1/result.json", "config.toml", "notes/mine.txt"} {
		if err := write(filepath.Join(home, name), []byte("# text\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	there := func(name string) bool {
		_, err := os.Stat(name)
		return !errors.Is(err, fs.ErrNotExist)
	}
	copied := filepath.Join(t.TempDir(), "unitask")
	if out, err := exec.Command("cp", program, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	out := do(t, filepath.Dir(program), env, program, "uninstall")
	for _, want := range []string{program, program + ".previous", filepath.Join(home, "images"), "can be made again"} {
		if !strings.Contains(out, want) || !there(want) && filepath.IsAbs(want) {
			t.Errorf("the list has no %s, or it was removed: %s", want, out)
		}
	}
	do(t, filepath.Dir(program), env, program, "uninstall", "--yes")
	if there(program) || there(program+".previous") || there(home+"/images") || !there(home+"/runs/1/result.json") ||
		!there(home+"/config.toml") {
		t.Error("--yes removed too much or too little")
	}
	do(t, filepath.Dir(copied), env, copied, "uninstall", "--yes", "--all")
	if there(copied) || there(home+"/runs") || there(home+"/config.toml") || !there(home+"/notes/mine.txt") {
		t.Error("--yes --all removed too much or too little")
	}
}
