// Command attack runs the attack suites of all rooms (tests named TestAttack…) and
// prints one table: attack, expected, seen. It exits with 1 when an attack got through,
// a suite failed, or no attack ran. Its arguments go to go test, before the packages.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/unitask/unitask/internal/attack"
)

// event is a line of go test -json (cmd/test2json).
type event struct{ Action, Package, Test, Output string }

// maxLine bounds a line of events, in bytes; a test's output comes a line at a time.
const maxLine = 16 << 20

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(flags []string, stdout, stderr io.Writer) int {
	args := append([]string{"test", "-json", "-p", "1", "-count=1", "-run", "^TestAttack"}, flags...)
	cmd := exec.Command("go", append(args, "./...")...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(stderr, "attack:", err)
		return 1
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ROOM\tATTACK\tEXPECTED\tSEEN\t")
	rows, through := 0, 0
	said := map[string]string{} // what a test printed, for when it fails or skips
	var failed []string
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
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
	}
	table.Flush()
	status := 0
	if err := lines.Err(); err != nil {
		fmt.Fprintln(stderr, "attack:", err)
		_, _ = io.Copy(io.Discard, out)
		status = 1
	}
	if cmd.Wait() != nil || rows == 0 || through > 0 {
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
