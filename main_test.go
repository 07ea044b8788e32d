package unitask_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

// baseHome is the folder whose parts and images the tests use. Each test that
// runs something has a home of its own that borrows them.
var baseHome string

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	flag.Parse()
	if testing.Short() { // examples boot machines
		if err := flag.Set("test.skip", "^Example"); err != nil {
			return 1
		}
	}
	var err error
	if baseHome = os.Getenv("UNITASK_TEST_HOME"); baseHome == "" {
		if baseHome, err = unitask.DefaultHome(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if !testing.Short() {
		// One that is nearly used up would end in the middle; needVM makes others.
		if rt, err := unitask.Open(unitask.Options{Home: baseHome}); err == nil {
			rt.Templates().Prune(0)
			rt.Close()
		}
	}
	home, err := os.MkdirTemp("", "unitask-test-home-") // for the examples
	if err == nil {
		err = borrow(home)
	}
	if err == nil {
		err = os.Setenv("UNITASK_HOME", home)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(home)
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
		if _, err := rt.MakeTemplate(context.Background(), unitask.Shape{Kernel: kernel}); err != nil && vmm.CanClone {
			t.Fatal(err)
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
	if err := borrow(home); err != nil {
		t.Fatal(err)
	}
	return home
}

// borrow gives a home the base's parts and images.
func borrow(home string) error {
	for _, shared := range []string{"vendor", "images", "locks", "cache", "templates"} {
		if err := os.MkdirAll(filepath.Join(baseHome, shared), 0o700); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join(baseHome, shared), filepath.Join(home, shared)); err != nil {
			return err
		}
	}
	return nil
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
