// Package testregistry installs packages of npm and PyPI for tests, once for each home of the tests.
package testregistry

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// NPM installs packages of npm into a folder of the base home that is kept, and returns the folder, which name names.
func NPM(t testing.TB, base, name string, packages ...string) string {
	t.Helper()
	return kept(t, filepath.Join(base, "cache", "npm-"+name), packages, func(dir string) *exec.Cmd {
		if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private":true}`), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "npm", append([]string{"install", "--no-audit", "--no-fund",
			"--ignore-scripts"}, packages...)...)
		cmd.Dir = dir
		return cmd
	})
}

// Pip installs packages of PyPI into a folder of the base home that is kept, and returns the folder, which is one for
// PYTHONPATH. It skips the test if python3 has no pip, or is older than 3.10.
func Pip(t testing.TB, base, name string, packages ...string) string {
	t.Helper()
	check := "import sys, pip; print(*sys.version_info[:2], sep='.'); sys.exit(sys.version_info < (3, 10))"
	version, err := exec.CommandContext(t.Context(), "python3", "-c", check).CombinedOutput()
	if err != nil {
		t.Skipf("no Python 3.10 with pip: %v %s", err, version)
	}
	name += "-" + strings.TrimSpace(string(version))
	return kept(t, filepath.Join(base, "cache", "pip-"+name), packages, func(dir string) *exec.Cmd {
		args := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "--target", dir}
		return exec.CommandContext(t.Context(), "python3", append(args, packages...)...)
	})
}

// kept fills a folder by a command, unless it has the packages.
func kept(t testing.TB, dir string, packages []string, install func(dir string) *exec.Cmd) string {
	t.Helper()
	done, list := filepath.Join(dir, "done"), strings.Join(packages, "\n")
	if has, err := os.ReadFile(done); err == nil && string(has) == list {
		return dir
	}
	err := os.RemoveAll(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := install(dir).CombinedOutput(); err != nil {
		t.Fatalf("install %v: %v\n%s", packages, err, out)
	}
	if err := os.WriteFile(done, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
