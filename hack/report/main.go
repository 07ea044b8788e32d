// Command report runs go test and prints what CI must not hide. It prints each failed test at once. At the end it
// prints each skipped test with its reason, each failed test with its whole output, and the slowest tests. It also
// prints how many tests passed, failed and were skipped, including subtests. Its arguments are go test's, with patterns
// of packages last.
//
// It repeats up to three failed tests, each alone. A test that passes then counts as unsteady and not as failed, and is
// printed with its first output. An attack's test always counts as failed. A package that failed although all its tests
// passed is repeated, too.
//
// It fails if an attack got through (internal/attack), even if that test passed when repeated. With REPORT_ATTACKS it
// prints the attacks of all tests in a table, as make attack does, and fails if there are none.
//
// The file in REPORT_SUMMARY gets the failed and unsteady tests, each with the end of its output, and the counts. CI
// prints that file last, so a truncated log still has it.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/gotest"
)

const (
	mostAgain  = 3    // more failures are not by chance
	longest    = 25   // slow tests to list
	summarized = 2000 // bytes of a test's output in the summary
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(flags []string, stdout, stderr io.Writer) int {
	r := report{w: stdout, said: map[string]string{}, broken: map[string]bool{}}
	plain := func(line string) { fmt.Fprintln(stdout, line) }
	bad, err := gotest.Run(flags, stderr, r.event, plain)
	if err == nil && bad {
		bad, err = r.again(flags, stderr, plain)
	}
	if err != nil {
		fmt.Fprintln(stderr, "report:", err)
		return 1
	}
	if os.Getenv("REPORT_ATTACKS") != "" {
		r.attacks.Print(stdout)
		fmt.Fprintln(stdout, r.attacks.Counts())
		bad = bad || r.attacks.Rows() == 0
	}
	good := r.end() && !bad && r.attacks.Through == 0
	if err := r.summarize(os.Getenv("REPORT_SUMMARY"), flags); err != nil {
		fmt.Fprintln(stderr, "report:", err)
		return 1
	}
	if !good {
		return 1
	}
	return 0
}

// ending is a test or a whole package that did not pass.
type ending struct{ pkg, test, said string }

func (e ending) name() string { return strings.TrimSpace(e.pkg + " " + e.test) }

// report is the outcome of the tests so far.
type report struct {
	w                         io.Writer
	said                      map[string]string // output by package, or by package and test
	broken                    map[string]bool   // packages with a failed test
	skipped, failed, unsteady []ending
	passed                    int
	attacks                   attack.Table
	took                      []gotest.Event // the slowest top-level tests, slowest first
	packages                  []gotest.Event // the slowest packages, slowest first
}

func (r *report) event(e gotest.Event) {
	end := ending{pkg: e.Package + e.ImportPath, test: e.Test}
	name := end.name()
	end.said = r.said[name]
	switch {
	case strings.HasSuffix(e.Action, "output"):
		r.said[name] += e.Output
		r.attacks.Add(e.Package, e.Output)
		return
	case e.Test != "" && e.Action == "pass":
		r.passed++
	case e.Test != "" && e.Action == "skip":
		r.skipped = append(r.skipped, end)
	case e.Test != "" && e.Action == "fail":
		r.broken[e.Package] = true
		r.fail(end)
	case e.Action == "pass", e.Action == "skip": // a package; it is skipped if it has no tests
		fmt.Fprint(r.w, verdict(end.said))
	case e.Action == "fail" && (r.broken[e.Package] || e.FailedBuild != ""): // it was already counted
		fmt.Fprint(r.w, verdict(end.said))
	case e.Action == "fail", e.Action == "build-fail": // none of its tests failed: it panicked, hung, or was not built
		r.fail(end)
	default:
		return
	}
	if e.Test == "" {
		r.packages = longestOf(append(r.packages, e))
	} else if !strings.Contains(e.Test, "/") {
		r.took = longestOf(append(r.took, e))
	}
	delete(r.said, name)
}

// longestOf returns the slowest tests, slowest first.
func longestOf(took []gotest.Event) []gotest.Event {
	slices.SortStableFunc(took, func(a, b gotest.Event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	return took[:min(len(took), longest)]
}

// fail records a failure, and prints it at once, so that nobody needs to wait for the end.
func (r *report) fail(end ending) {
	fmt.Fprintln(r.w, "failed", end.name())
	r.failed = append(r.failed, end)
}

// again repeats the failed tests. It returns whether any still failed.
func (r *report) again(flags []string, stderr io.Writer, plain func(string)) (bad bool, err error) {
	var leaves []ending
	if r.attacks.Through > 0 {
		return true, nil
	}
	for _, f := range r.failed {
		if f.test == "" && !slices.Contains(strings.Split(f.said, "\n"), "PASS") || strings.Contains(f.test, "Attack") {
			return true, nil
		}
		if !slices.ContainsFunc(r.failed, func(o ending) bool {
			return o.pkg == f.pkg &&
				strings.HasPrefix(o.test, f.test+"/")
		}) {
			leaves = append(leaves, f)
		}
	}
	if len(leaves) == 0 || len(leaves) > mostAgain {
		return true, nil
	}
	passed := map[string]bool{}
	for _, leaf := range leaves {
		fmt.Fprintln(r.w, "again, alone:", leaf.name())
		alone := append(withoutPackages(flags), "-count=1", "-run", pattern(leaf.test), leaf.pkg)
		ended := map[string]string{}
		failed, err := gotest.Run(alone, stderr, func(e gotest.Event) {
			if e.Action != "output" {
				ended[e.Test] = e.Action
			}
		}, plain)
		if err != nil || failed {
			return true, err
		}
		for test, action := range ended {
			passed[ending{pkg: leaf.pkg, test: test}.name()] = action == "pass"
		}
	}
	r.unsteady, r.failed = r.failed, nil
	for _, u := range r.unsteady {
		if !passed[u.name()] { // skipped, or no longer present
			r.failed, r.unsteady = r.unsteady, nil
			return true, nil
		}
		if u.test != "" {
			r.passed++
		}
	}
	return false, nil
}

// withoutPackages returns a command line without the packages at its end.
func withoutPackages(flags []string) []string {
	n := len(flags)
	for n > 0 && strings.HasPrefix(flags[n-1], ".") {
		n--
	}
	return slices.Clone(flags[:n])
}

// pattern is go test's -run for one test, or for all tests of a package.
func pattern(test string) string {
	if test == "" {
		return "."
	}
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// end prints the outcome of the tests. It returns true if nothing failed and something ran.
func (r *report) end() (good bool) {
	for _, s := range r.skipped {
		fmt.Fprintf(r.w, "skipped %s: %s\n", s.name(), reason(s.said))
	}
	for _, u := range r.unsteady {
		fmt.Fprintf(r.w, "\nUNSTEADY %s: passed when it ran again, alone; before\n%s", u.name(), u.said)
	}
	for _, f := range r.failed {
		fmt.Fprintf(r.w, "\nFAILED %s\n%s", f.name(), f.said)
	}
	for i, e := range append(r.packages, r.took...) {
		if i == 0 {
			fmt.Fprintln(r.w, "\nwhat took longest:")
		}
		fmt.Fprintf(r.w, "%7.1f s %s %s\n", e.Elapsed, e.Package, e.Test)
	}
	fmt.Fprintf(r.w, "\n%d passed, %d failed, %d skipped\n", r.passed, len(r.failed), len(r.skipped))
	return len(r.failed) == 0 && r.passed > 0
}

// summarize appends the failed and unsteady tests and the counts to the file at path, if there is one.
func (r *report) summarize(path string, flags []string) error {
	if path == "" {
		return nil
	}
	var text strings.Builder
	say := func(what string, ends []ending) {
		for _, e := range ends {
			said := strings.TrimSpace(e.said)
			fmt.Fprintf(&text, "%s %s\n%s\n", what, e.name(), said[max(0, len(said)-summarized):])
		}
	}
	say("UNSTEADY", r.unsteady)
	say("FAILED", r.failed)
	fmt.Fprintf(&text, "%d passed, %d failed, %d skipped: go test %s\n", r.passed, len(r.failed), len(r.skipped),
		strings.Join(flags, " "))
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text.String())
	return errors.Join(err, file.Close())
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

// reason returns a test's output, without the lines that go test adds.
func reason(said string) string {
	var text []string
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "=== ") &&
			!strings.HasPrefix(line, "--- ") {
			text = append(text, line)
		}
	}
	return strings.Join(text, " ")
}
