package userhome

import (
	"os/user"
	"testing"
)

func TestDir(t *testing.T) {
	of, err := user.Current()
	if err != nil {
		t.Skip(err)
	}
	t.Setenv("HOME", "/some/where")
	if got, err := Dir(); got != "/some/where" || err != nil {
		t.Errorf("%q %v, want $HOME", got, err)
	}
	t.Setenv("HOME", "")
	if got, err := Dir(); got != of.HomeDir || err != nil {
		t.Errorf("%q %v, want %q", got, err, of.HomeDir)
	}
}
