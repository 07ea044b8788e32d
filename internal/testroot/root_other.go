//go:build !linux

package testroot

import (
	"os/exec"
	"testing"
)

// Enter does nothing: the parts' programs are linux'.
func Enter() {}

// Into skips the test.
func Into(t testing.TB, _ *exec.Cmd, _ string) {
	t.Helper()
	t.Skip("runs programs of linux on the host")
}

// Make skips the test.
func Make(t testing.TB, _ string, _ []string) string {
	t.Helper()
	t.Skip("runs programs of linux on the host")
	return ""
}
