package attack

import (
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Table is the rows that the output of go test has.
type Table struct {
	Through int // rows whose outcome was not the expected one

	rows []row
}

type row struct{ room, name, want, got string }

func (r row) through() bool { return r.got != r.want }

// Add takes a line of a package's output, which most often has no row.
func (t *Table) Add(pkg, line string) {
	_, rest, ok := strings.Cut(line, Mark)
	if list := unquote(rest); ok && len(list) == 3 {
		r := row{path.Base(pkg), list[0], list[1], list[2]}
		t.rows = append(t.rows, r)
		if r.through() {
			t.Through++
		}
	}
}

// Rows returns how many there are.
func (t *Table) Rows() int { return len(t.rows) }

// Print writes the rows in columns.
func (t *Table) Print(w io.Writer) {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "ROOM\tATTACK\tEXPECTED\tSEEN\t")
	for _, r := range t.rows {
		verdict := ""
		if r.through() {
			verdict = "GOT THROUGH"
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", r.room, clip(r.name), clip(r.want), clip(r.got), verdict)
	}
	out.Flush()
}

// Counts returns the table in a line.
func (t *Table) Counts() string {
	return fmt.Sprintf("%d attacks, %d got through", t.Rows(), t.Through)
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
