package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// A mount may give a home another path (or macOS, where a disk ignores case).
func TestBuiltInMount(t *testing.T) {
	dir := t.TempDir()
	home, other := filepath.Join(dir, "users", "me"), filepath.Join(dir, "other")
	for _, d := range []string{filepath.Join(home, "project"), other} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(filepath.Dir(home), other, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("only root mounts: %v", err)
	}
	defer func() {
		if err := unix.Unmount(other, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	t.Setenv("HOME", home)
	for what, at := range map[string]string{"the home": filepath.Join(other, "me"), "the folder of homes": other} {
		attack.Check(t, "the built-in ceiling's files: "+what+", by the path of a mount", "[]",
			fmt.Sprint(BuiltIn(at, "").most["filesUnder"]))
	}
	project := filepath.Join(other, "me", "project")
	if got := fmt.Sprint(BuiltIn(project, "").most["filesUnder"]); got != "["+project+"]" {
		t.Error(got)
	}
}
