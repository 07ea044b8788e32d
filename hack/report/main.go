// Command report runs go test and says in the end what CI must not hide: each test that
// was skipped with its reason, each that failed with all that it said, and how many
// passed, failed and were skipped, subtests among them. Its arguments are go test's.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/gotest"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(flags []string, stdout, stderr io.Writer) int {
	r := report{w: stdout, said: map[string]string{}, broken: map[string]bool{}}
	bad, err := gotest.Run(flags, stderr, r.event, func(line string) { fmt.Fprintln(stdout, line) })
	if err != nil {
		fmt.Fprintln(stderr, "report:", err)
		return 1
	}
	if good := r.end(); bad || !good {
		return 1
	}
	return 0
}

// ending is a test, or a whole package, that did not pass.
type ending struct{ name, said string }

// report is what came of the tests so far.
type report struct {
	w               io.Writer
	said            map[string]string // by package, or package and test
	broken          map[string]bool   // packages in which a test failed
	skipped, failed []ending
	passed          int
}

func (r *report) event(e gotest.Event) {
	name := strings.TrimSpace(e.Package + e.ImportPath + " " + e.Test)
	switch {
	case strings.HasSuffix(e.Action, "output"):
		r.said[name] += e.Output
		return
	case e.Test != "" && e.Action == "pass":
		r.passed++
	case e.Test != "" && e.Action == "skip":
		r.skipped = append(r.skipped, ending{name, r.said[name]})
	case e.Test != "" && e.Action == "fail":
		r.broken[e.Package] = true
		r.failed = append(r.failed, ending{name, r.said[name]})
	case e.Action == "pass", e.Action == "skip": // a package; it skips when it has no tests
		fmt.Fprint(r.w, verdict(r.said[name]))
	case e.Action == "fail" && (r.broken[e.Package] || e.FailedBuild != ""): // it was counted
		fmt.Fprint(r.w, verdict(r.said[name]))
	case e.Action == "fail", e.Action == "build-fail": // no test of it did: it panicked, hung, or was not built
		r.failed = append(r.failed, ending{name, r.said[name]})
	default:
		return
	}
	delete(r.said, name)
}

// end prints what came of the tests. It returns whether all is well: nothing failed and
// something ran.
func (r *report) end() (good bool) {
	for _, s := range r.skipped {
		fmt.Fprintf(r.w, "skipped %s: %s\n", s.name, reason(s.said))
	}
	for _, f := range r.failed {
		fmt.Fprintf(r.w, "\nFAILED %s\n%s", f.name, f.said)
	}
	fmt.Fprintf(r.w, "\n%d passed, %d failed, %d skipped\n", r.passed, len(r.failed), len(r.skipped))
	return len(r.failed) == 0 && r.passed > 0
}

// verdict is go test's line on a package, "ok" or "FAIL" and how long it took.
func verdict(said string) string {
	all := slices.Collect(strings.Lines(said))
	for _, line := range slices.Backward(all) {
		for _, word := range []string{"ok ", "FAIL\t", "? "} {
			if strings.HasPrefix(line, word) {
				return line
			}
		}
	}
	return ""
}

// reason is what a test said, without the lines that go test adds.
func reason(said string) string {
	var text []string
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			text = append(text, line)
		}
	}
	return strings.Join(text, " ")
}
