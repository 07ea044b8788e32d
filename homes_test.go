package unitask_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// The configuration of secrets is not read from a home that another user could change.
func TestAttackHomeOfSecrets(t *testing.T) {
	for mode, want := range map[os.FileMode]string{0o700: "read", 0o755: "read", 0o770: "refused", 0o707: "refused",
		0o777: "refused"} {
		home := testdir.Private(t)
		if err := os.WriteFile(filepath.Join(home, unitask.ConfigFile), []byte("[secrets]\nKEY = \"env:OTHER\"\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(home, mode); err != nil {
			t.Fatal(err)
		}
		for what, read := range map[string]func(string) error{
			"secrets":  func(home string) error { _, err := unitask.Vault(home); return err },
			"webhooks": func(home string) error { _, err := unitask.Webhooks(home); return err },
		} {
			got := "read"
			if err := read(home); err != nil && strings.Contains(err.Error(), "may be written by other users") {
				got = "refused"
			}
			attack.Check(t, "where "+what+" are, of a home of mode "+mode.String(), want, got)
		}
	}
	if _, err := unitask.Vault(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("of a home that is not there yet: %v", err)
	}
}

// A relative HOME means a different home in each folder. It is refused, and gives models no files.
func TestAttackRelativeHome(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("UNITASK_HOME", "")
	for _, home := range []string{"home", ".", "..", "./x"} {
		t.Setenv("HOME", home)
		got := "refused"
		if at, err := unitask.DefaultHome(); err == nil || !strings.Contains(err.Error(), "relative") {
			got = at
		}
		attack.Check(t, "the home of HOME="+home, "refused", got)
		got = "denied"
		_, denials, err := policy.Resolve(policy.Request{Dirs: []policy.Mount{{Host: dir, Real: dir, Guest: "/work"}}},
			policy.BuiltIn(dir, "/somewhere/.unitask"))
		if err != nil {
			t.Fatal(err)
		}
		if len(denials) == 0 {
			got = "granted"
		}
		attack.Check(t, "a model's folder with HOME="+home, "denied", got)
	}
	t.Setenv("HOME", dir)
	if at, err := unitask.DefaultHome(); err != nil || at != filepath.Join(dir, ".unitask") {
		t.Errorf("%q %v", at, err)
	}
}

// An unknown image name is not granted, with or without a ceiling.
func TestAttackImageForms(t *testing.T) {
	ceiling, err := policy.ParseCeiling(policy.CeilingFile, []byte(`images = ["node", "docker.io/library/*"]`))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Foo/Bar", "sha256:abc", "NODE", "a b", "*", "docker.io/*", "docker.io/library/*",
		"node\n", "-node", "docker.io/library/alpine:"} {
		for what, c := range map[string]*policy.Ceiling{"no ceiling": nil, "a ceiling": ceiling} {
			got := "refused"
			if eff, _, err := unitask.Resolve(unitask.Request{Image: name}, c); err == nil {
				got = "granted " + eff.Image
			}
			attack.Check(t, "an image that is none, under "+what+": "+name, "refused", got)
		}
	}
	for _, name := range []string{"", "node", "own_image-1", "alpine:3.20", "sha256:0123456789ab"} {
		if _, _, err := unitask.Resolve(unitask.Request{Image: name}, nil); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
