package unitask_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// baseHome is the folder whose parts and images the tests use. Each test that
// runs something has a home of its own that borrows them.
var baseHome string

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	var err error
	if baseHome = os.Getenv("UNITASK_TEST_HOME"); baseHome == "" {
		if baseHome, err = unitask.DefaultHome(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if err := os.Unsetenv("UNITASK_HOME"); err != nil {
		return 1
	}
	return m.Run()
}

// needVM skips in -short, and makes sure that the parts and images are there.
func needVM(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots real machines; not in -short")
	}
	rt, err := unitask.Open(unitask.Options{Home: baseHome, Events: func(e unitask.Event) { t.Log(e.Kind, e.Message) }})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, kernel := range kernels(t) {
		if _, err := rt.Images().Ensure(context.Background(), kernel, image.HostArch()); err != nil {
			t.Fatalf("%v\n`make vendor` fetches what is missing", err)
		}
	}
}

// kernels are those that this machine has the parts for. Linux is always one.
func kernels(t testing.TB) []image.Kernel {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: baseHome})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, err := rt.Images().Part(image.HostArch(), "nanos"); err == nil {
		return []image.Kernel{image.Linux, image.Nanos}
	}
	return []image.Kernel{image.Linux}
}

// newHome returns a home with the base's parts and images and no runs.
func newHome(t testing.TB) string {
	t.Helper()
	home := t.TempDir()
	for _, shared := range []string{"vendor", "images", "locks", "cache"} {
		if err := os.MkdirAll(filepath.Join(baseHome, shared), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(baseHome, shared), filepath.Join(home, shared)); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

// slots bounds how many machines the tests run at once: a boot under TCG takes a
// whole core.
var slots = make(chan struct{}, max(2, runtime.NumCPU()))

func slot(t testing.TB) {
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
}

func nodeBinary() string {
	return filepath.Join(baseHome, "vendor", runtime.GOARCH, "node", "node")
}
