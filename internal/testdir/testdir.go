// Package testdir makes folders for tests.
package testdir

import (
	"os"
	"testing"
)

// Private returns a folder for one test that only its user can access, whatever the umask is. A home must be such a
// folder.
func Private(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
