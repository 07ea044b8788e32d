// Command fidelity shows how near the guests come to Node and Python on the host. It takes a folder of Node's own tests
// (test/ of a Node release, which is not part of this repository), and draws a sample. It runs the sample with the
// vendored Node on the host. Tests that pass there also run in a machine of each kernel. It prints a table with a
// reason for every failure. It also runs files of CPython's tests (Debian's libpython3.11-testsuite) with Debian's
// Python, on the host and in a machine. It compares the outcome of every single test. It does the same for Debian's
// numpy and pandas, with pytest.
//
//	go run ./hack/fidelity -tests node/test [-n 600] [-for 4m] [-results FILE] [-kernel nanos,linux]
//	go run ./hack/fidelity -packages [-kernel nanos,linux]
//	go run ./hack/fidelity -python DIR [-n 120] [-for 4m] [-results FILE]
//	go run ./hack/fidelity -data DIR [-n 40] [-for 4m] [-results FILE]
//
// It keeps results in a file, and does not repeat tests with results, so a sample can run in pieces. It exits with 0
// when all tests have run, with 1 on an error, and with 3 when -for came first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

func main() {
	var o options
	flag.StringVar(&o.tests, "tests", "", "Node's folder test/")
	flag.IntVar(&o.n, "n", 600, "tests that pass on the host, or files of tests in Python, to draw")
	flag.Int64Var(&o.seed, "seed", 1, "of the draw: the same seed and tests give the same sample")
	flag.DurationVar(&o.atMost, "for", time.Hour, "stop after so long; the next call goes on")
	flag.StringVar(&o.results, "results", "fidelity.jsonl", "file that what has been run is kept in")
	flag.StringVar(&o.only, "only", "",
		"run only tests whose name holds this (in Python: files of these names, with commas), again, and print what they say")
	flag.IntVar(&o.jobs, "j", runtime.NumCPU(), "tests at once")
	python := flag.String("python", "", "folder with CPython's package test, whole; its tests, and not Node's")
	data := flag.String("data", "", "folder with Debian's numpy and pandas; their tests, and not Node's")
	packages := flag.Bool("packages", false, "run the packages' programs and not Node's tests")
	kernels := flag.String("kernel", "nanos,linux", "kernels to run them on")
	flag.Parse()
	modes := 0
	for _, given := range []bool{o.tests != "", *python != "", *data != "", *packages} {
		if given {
			modes++
		}
	}
	if flag.NArg() > 0 || modes != 1 {
		fmt.Fprintln(os.Stderr,
			"fidelity: give -tests DIR (Node's folder test/), -python DIR (a folder with CPython's package test), "+
				"-data DIR (Debian's /usr/lib/python3/dist-packages), or -packages")
		flag.Usage()
		os.Exit(2)
	}
	for k := range strings.SplitSeq(*kernels, ",") {
		o.kernels = append(o.kernels, image.Kernel(k))
	}
	defaultSignals()
	err := withRuntime(o.results, func(rt *unitask.Runtime, node string) error {
		o.rt, o.node = rt, node
		switch {
		case *packages:
			return runPackages(context.Background(), o)
		case *python != "" || *data != "":
			var err error
			if o.tests, err = filepath.Abs(*python + *data); err != nil {
				return err
			}
			if *data != "" {
				return dataTests(o).work(context.Background())
			}
			return cpython(o).work(context.Background())
		}
		return runTests(context.Background(), o)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "fidelity:", err)
		if errors.Is(err, errUnfinished) {
			os.Exit(3)
		}
		os.Exit(1)
	}
}

// defaultSignals gives the tests the default action for every signal. Whoever started this program may ignore some, as
// a shell with & does.
func defaultSignals() {
	for s := syscall.Signal(1); s < 32; s++ {
		if signal.Ignored(s) && s != syscall.SIGPIPE {
			signal.Notify(make(chan os.Signal, 1), s) // a signal handled here gets the default in a child
		}
	}
}

var errUnfinished = errors.New("the time is over and some tests have not been run: call it again")

type options struct {
	tests, results, only string
	n, jobs              int
	seed                 int64
	atMost               time.Duration
	kernels              []image.Kernel
	rt                   *unitask.Runtime
	node                 string // the vendored binary
}

// withRuntime calls f with a runtime on the home's parts. Its own home is beside the results, because of the packages
// that are installed once. Its records are removed.
func withRuntime(results string, f func(*unitask.Runtime, string) error) error {
	base, err := unitask.DefaultHome()
	if err != nil {
		return err
	}
	home, err := filepath.Abs(results + ".home")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Join(home, "runs"))
	for _, shared := range []string{"vendor", "images", "locks", "cache", "templates"} {
		if err := os.MkdirAll(filepath.Join(base, shared), 0o700); err != nil {
			return err
		}
		link := filepath.Join(home, shared)
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(filepath.Join(base, shared), link); err != nil {
			return err
		}
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		return err
	}
	defer rt.Close()
	return f(rt, filepath.Join(base, "vendor", runtime.GOARCH, "node", "node"))
}
