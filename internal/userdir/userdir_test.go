package userdir

import (
	"os"
	"os/user"
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
