package attack

import (
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Table collects the rows in the output of go test.
type Table struct {
	Through int // rows with another outcome than expected

	rows []row
}

type row struct{ room, name, want, got string }

func (r row) through() bool { return r.got != r.want }

// Add takes a line of a package's output. Most lines contain no row.
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

// Rows returns the number of rows.
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

// Counts returns a summary of the table in one line.
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

// clip returns the text of one cell: at most 60 runes, with control characters escaped.
func clip(s string) string {
	quoted := strconv.Quote(s)
	r := []rune(quoted[1 : len(quoted)-1])
	if len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return string(r)
}
