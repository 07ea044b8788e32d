// Command attack runs the attack suites of all packages (tests named TestAttack…) and prints one table: attack,
// expected, seen. It exits with 1 if an attack got through, a suite failed, or no attack ran. It passes its arguments
// to go test, before the packages.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/gotest"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(flags []string, stdout, stderr io.Writer) int {
	var table attack.Table
	said := map[string]string{} // a test's output, for a failure or a skip
	var failed []string
	args := append([]string{"-p", "1", "-count=1", "-timeout", "30m", "-run", "^TestAttack"}, flags...)
	bad, err := gotest.Run(append(args, "./...", "./hack/..."), stderr, func(e gotest.Event) {
		test := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			said[test] += e.Output
			table.Add(e.Package, e.Output)
		case "fail", "skip":
			if e.Test != "" || e.Action == "fail" {
				failed = append(failed, e.Action+" "+test+"\n"+said[test])
			}
		}
	}, func(string) {})
	table.Print(stdout)
	status := 0
	if err != nil {
		fmt.Fprintln(stderr, "attack:", err)
	}
	if err != nil || bad || table.Rows() == 0 || table.Through > 0 {
		status = 1
	}
	for _, text := range failed {
		fmt.Fprint(stdout, "\n", text)
	}
	fmt.Fprintln(stdout, table.Counts())
	return status
}
