// Command report runs go test and says in the end what CI must not hide: each test that
// was skipped with its reason, each that failed with all that it said, and how many
// passed, failed and were skipped, subtests among them. Its arguments are go test's.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// event is a line of go test -json (cmd/test2json), or of go build -json.
type event struct{ Action, Package, ImportPath, Test, Output, FailedBuild string }

// maxLine bounds a line of events, in bytes; a test's output comes a line at a time.
const maxLine = 16 << 20

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(flags []string, stdout, stderr io.Writer) int {
	cmd := exec.Command("go", append([]string{"test", "-json"}, flags...)...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(stderr, "report:", err)
		return 1
	}
	good, err := report(out, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "report:", err)
		_, _ = io.Copy(io.Discard, out)
	}
	if cmd.Wait() != nil || err != nil || !good {
		return 1
	}
	return 0
}

// ending is a test, or a whole package, that did not pass.
type ending struct{ name, said string }

// report reads events and prints what came of them. It returns whether all is well:
// nothing failed and something ran.
func report(events io.Reader, w io.Writer) (good bool, err error) {
	said := map[string]string{} // by package, or package and test
	broken := map[string]bool{} // packages in which a test failed
	var skipped, failed []ending
	passed := 0
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(w, lines.Text()) // go's own word
			continue
		}
		name := strings.TrimSpace(e.Package + e.ImportPath + " " + e.Test)
		switch {
		case strings.HasSuffix(e.Action, "output"):
			said[name] += e.Output
			continue
		case e.Test != "" && e.Action == "pass":
			passed++
		case e.Test != "" && e.Action == "skip":
			skipped = append(skipped, ending{name, said[name]})
		case e.Test != "" && e.Action == "fail":
			broken[e.Package] = true
			failed = append(failed, ending{name, said[name]})
		case e.Action == "pass", e.Action == "skip": // a package; it skips when it has no tests
			fmt.Fprint(w, verdict(said[name]))
		case e.Action == "fail" && (broken[e.Package] || e.FailedBuild != ""): // it was counted
			fmt.Fprint(w, verdict(said[name]))
		case e.Action == "fail", e.Action == "build-fail": // no test of it did: it panicked, hung, or was not built
			failed = append(failed, ending{name, said[name]})
		default:
			continue
		}
		delete(said, name)
	}
	if err := lines.Err(); err != nil {
		return false, err
	}
	for _, s := range skipped {
		fmt.Fprintf(w, "skipped %s: %s\n", s.name, reason(s.said))
	}
	for _, f := range failed {
		fmt.Fprintf(w, "\nFAILED %s\n%s", f.name, f.said)
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", passed, len(failed), len(skipped))
	return len(failed) == 0 && passed > 0, nil
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
