// Command attack runs the attack suites of all rooms (tests named TestAttack…) and
// prints one table: attack, expected, seen. It exits with 1 when an attack got through,
// a suite failed, or no attack ran. Its arguments go to go test, before the packages.
package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/gotest"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(flags []string, stdout, stderr io.Writer) int {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ROOM\tATTACK\tEXPECTED\tSEEN\t")
	rows, through := 0, 0
	said := map[string]string{} // what a test printed, for when it fails or skips
	var failed []string
	args := append([]string{"-p", "1", "-count=1", "-timeout", "30m", "-run", "^TestAttack"}, flags...)
	bad, err := gotest.Run(append(args, "./..."), stderr, func(e gotest.Event) {
		test := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			said[test] += e.Output
			_, rest, ok := strings.Cut(e.Output, attack.Mark)
			if row := unquote(rest); ok && len(row) == 3 {
				rows++
				verdict := ""
				if row[1] != row[2] {
					through++
					verdict = "GOT THROUGH"
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.Package[strings.LastIndex(e.Package, "/")+1:], clip(row[0]), clip(row[1]), clip(row[2]), verdict)
			}
		case "fail", "skip":
			if e.Test != "" || e.Action == "fail" {
				failed = append(failed, e.Action+" "+test+"\n"+said[test])
			}
		}
	}, func(string) {})
	table.Flush()
	status := 0
	if err != nil {
		fmt.Fprintln(stderr, "attack:", err)
	}
	if err != nil || bad || rows == 0 || through > 0 {
		status = 1
	}
	for _, text := range failed {
		fmt.Fprint(stdout, "\n", text)
	}
	fmt.Fprintf(stdout, "%d attacks, %d got through\n", rows, through)
	return status
}

// unquote reads the quoted strings of a row.
func unquote(s string) (list []string) {
	for {
		s = strings.TrimSpace(s)
		q, err := strconv.QuotedPrefix(s)
		if err != nil {
			return list
		}
		text, _ := strconv.Unquote(q)
		list = append(list, text)
		s = s[len(q):]
	}
}

// clip is one cell: control characters shown, 60 runes at most.
func clip(s string) string {
	quoted := strconv.Quote(s)
	r := []rune(quoted[1 : len(quoted)-1])
	if len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return string(r)
}
