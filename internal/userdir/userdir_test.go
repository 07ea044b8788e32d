package userdir

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

func TestHome(t *testing.T) {
	of, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", "/some/where")
	if got, err := Home(); got != "/some/where" || err != nil {
		t.Errorf("%q %v, want $HOME", got, err)
	}
	t.Setenv("HOME", "")
	if got, err := Home(); got != of.HomeDir || err != nil {
		t.Errorf("%q %v, want %q", got, err, of.HomeDir)
	}
}

func TestWorking(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if got, err := Working(); got != dir || err != nil {
		t.Errorf("%q %v, want %q", got, err, dir)
	}
	t.Setenv("PWD", "")
	if err := os.Remove(dir); err != nil {
		t.Skip("this system keeps the working folder: ", err)
	}
	if got, err := Working(); err == nil || !strings.Contains(err.Error(), "change to one that exists") {
		t.Errorf("%q %v of a folder that was removed", got, err)
	}
}

// What came with the program is beside its folder, or where UNITASK_SHARE says. Another user's folder is not taken.
func TestShare(t *testing.T) {
	top := t.TempDir()
	program, dir := filepath.Join(top, "bin", "unitask"), filepath.Join(top, "share", "unitask")
	for _, name := range []string{filepath.Dir(program), dir} {
		if err := os.MkdirAll(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := shareOf(program); got != "" {
		t.Errorf("%q without a program", got)
	}
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := shareOf(program); got != dir {
		t.Errorf("%q, want %q", got, dir)
	}
	t.Chdir(top)
	for named, want := range map[string]string{"share": filepath.Join(top, "share"), "no": "", "bin/unitask": ""} {
		t.Setenv(ShareVariable, named)
		if got := Share(); got != want {
			t.Errorf("%s: %q, want %q", named, got, want)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to another user")
	}
	for _, name := range []string{filepath.Dir(dir), dir} {
		if err := os.Lchown(name, 1001, 1001); err != nil {
			t.Fatal(err)
		}
		if got := shareOf(program); got != "" {
			t.Errorf("%q although %s is another user's", got, name)
		}
		if err := os.Lchown(name, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Lchown(program, 1001, 1001); err != nil {
		t.Fatal(err)
	}
	if got := shareOf(program); got != dir {
		t.Errorf("%q, want root's %q", got, dir)
	}
}
