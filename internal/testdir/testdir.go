// Package testdir makes folders for tests.
package testdir

import (
	"os"
	"testing"
)

// Private returns a folder for one test that is its user's alone, whatever the umask is: a home must be.
func Private(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
