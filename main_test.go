package unitask_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testroot"
)

// baseHome is the folder with the parts and images of the tests. Each test with runs has its own home, which borrows
// them.
var baseHome string

func TestMain(m *testing.M) {
	testroot.Enter()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	flag.Parse()
	if testing.Short() { // examples boot machines
		skip := "^Example"
		if more := flag.Lookup("test.skip").Value.String(); more != "" {
			skip += "|" + more
		}
		if err := flag.Set("test.skip", skip); err != nil {
			return 1
		}
	}
	var err error
	if baseHome, err = testhome.Base(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	home, err := os.MkdirTemp("", "unitask-test-home-") // for the examples
	if err == nil {
		err = testhome.Borrow(baseHome, home)
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

// needVM skips in -short, and makes sure that the parts and images exist.
func needVM(t testing.TB) {
	t.Helper()
	testhome.Ready(t, baseHome, kernels(t)...)
}

// kernels returns the kernels whose parts this machine has. Linux is always included.
func kernels(t testing.TB) []image.Kernel {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: baseHome})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, err := rt.Images().Parts().Get(image.HostArch(), "nanos"); err == nil {
		return []image.Kernel{image.Linux, image.Nanos}
	}
	return []image.Kernel{image.Linux}
}

// newHome returns a home with the base's parts and images and no runs.
func newHome(t testing.TB) string {
	t.Helper()
	return testhome.New(t, baseHome)
}

// slots limits how many machines the tests run at once: a boot under TCG takes a whole core.
var slots = make(chan struct{}, max(2, runtime.NumCPU()))

func slot(t testing.TB) {
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
}

func nodeBinary() string {
	return filepath.Join(baseHome, "vendor", runtime.GOARCH, "node", "node")
}
