package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// This file lays text out for the width of a terminal. Elsewhere lines are as long as their text, for grep and awk.

// cutMark at the end of a header means that the column's cells are cut to the room that is left, instead of wrapped.
const cutMark = "…"

// maxCut bounds such cells, in characters, where there is no terminal.
const maxCut = 60

// columnsOf returns the width of a terminal, 0 if there is none.
func columnsOf(to any) int {
	f, ok := to.(*os.File)
	if !ok || !isTerminal(to) {
		return 0
	}
	if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
		return n
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return 80
}

// table prints rows under a header, whose names are separated by bars. It wraps rows that are too long for the terminal
// at blanks. If that is not enough, each row becomes lines of a name and a value.
func (u *ui) table(header string, rows [][]string) {
	u.clear()
	writeTable(u.std.Stdout, columnsOf(u.std.Stdout), header, rows)
}

func writeTable(to io.Writer, columns int, header string, rows [][]string) {
	names := strings.Split(header, "|")
	cut := make([]bool, len(names))
	for i, name := range names {
		names[i], cut[i] = strings.CutSuffix(name, cutMark)
	}
	lines := [][]string{names}
	for _, row := range rows {
		shown := make([]string, len(names))
		for i := range min(len(row), len(names)) {
			if shown[i] = visible(row[i]); cut[i] && columns == 0 {
				shown[i] = cutTo(shown[i], maxCut)
			}
		}
		lines = append(lines, shown)
	}
	widths, fits := fitColumns(lines, cut, columns)
	if !fits && len(rows) == 0 {
		writeWrapped(to, strings.Join(names, "  "), columns, 0)
		return
	}
	if !fits {
		writeRecords(to, names, lines[1:], cut, columns)
		return
	}
	for _, line := range lines {
		writeRow(to, line, widths, cut)
	}
}

// gap is the space between two columns.
const gap = 2

// fitColumns returns the width of each column, and whether they fit.
func fitColumns(lines [][]string, cut []bool, columns int) (widths []int, fits bool) {
	least := make([]int, len(cut))
	widths = make([]int, len(cut))
	for n, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], textWidth(cell))
			if !cut[i] || n == 0 {
				for word := range strings.FieldsSeq(cell) {
					least[i] = max(least[i], textWidth(word))
				}
			}
		}
	}
	const minCut = 10 // minimum characters of a cut cell
	total := gap * (len(widths) - 1)
	for i := range widths {
		if cut[i] {
			least[i] = max(least[i], min(widths[i], minCut))
		}
		total += widths[i]
	}
	for columns > 0 && total > columns {
		at := -1
		for i := range widths { // shrink the columns that may be cut first, then the widest
			if widths[i] > least[i] && (at < 0 || cut[i] && !cut[at] || cut[i] == cut[at] && widths[i] > widths[at]) {
				at = i
			}
		}
		if at < 0 {
			return widths, false
		}
		widths[at]--
		total--
	}
	return widths, true
}

// writeRow prints a row, in as many lines as its longest cell needs.
func writeRow(to io.Writer, cells []string, widths []int, cut []bool) {
	wrapped, most := make([][]string, len(cells)), 1
	for i, cell := range cells {
		if cut[i] {
			wrapped[i] = []string{cutTo(cell, widths[i])}
		} else {
			wrapped[i] = wrap(cell, widths[i])
		}
		most = max(most, len(wrapped[i]))
	}
	for n := range most {
		var line strings.Builder
		for i, parts := range wrapped {
			part := ""
			if n < len(parts) {
				part = parts[n]
			}
			line.WriteString(part)
			if i < len(wrapped)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-textWidth(part)+gap))
			}
		}
		fmt.Fprintln(to, strings.TrimRight(line.String(), " "))
	}
}

// writeRecords prints each row as lines of a name and a value, with an empty line between rows.
func writeRecords(to io.Writer, names []string, rows [][]string, cut []bool, columns int) {
	indent := 0
	for _, name := range names {
		indent = max(indent, textWidth(name)+gap)
	}
	for n, row := range rows {
		if n > 0 {
			fmt.Fprintln(to)
		}
		for i, cell := range row {
			if cell == "" {
				continue
			}
			if cut[i] {
				cell = cutTo(cell, max(columns-indent, 1))
			}
			writeNamed(to, names[i], cell, indent, columns)
		}
	}
}

// fact prints a line of a name and a value, which is wrapped beside the name.
func (u *ui) fact(name, format string, args ...any) {
	u.clear()
	writeNamed(u.std.Stdout, name, visible(fmt.Sprintf(format, args...)), factIndent, columnsOf(u.std.Stdout))
}

// factIndent is where the values of facts begin.
const factIndent = 13

func writeNamed(to io.Writer, name, value string, indent, columns int) {
	name += strings.Repeat(" ", max(indent-textWidth(name), 1))
	if columns > 0 && indent > columns/2 { // the value would have no room
		fmt.Fprintln(to, strings.TrimRight(cutTo(name, columns), " "))
		name, indent = "  ", 2
	}
	fmt.Fprint(to, name)
	writeWrapped(to, value, columns, indent)
}

// line prints a text, wrapped at blanks to the terminal's width.
func (u *ui) line(format string, args ...any) {
	u.clear()
	writeWrapped(u.std.Stdout, visible(fmt.Sprintf(format, args...)), columnsOf(u.std.Stdout), 0)
}

// writeWrapped prints a text whose first line is already indented.
func writeWrapped(to io.Writer, text string, columns, indent int) {
	lines := []string{text}
	if columns > 0 {
		lines = wrap(text, max(columns-indent, 1))
	}
	for i, line := range lines {
		if i > 0 {
			fmt.Fprint(to, strings.Repeat(" ", indent))
		}
		fmt.Fprintln(to, line)
	}
}

// wrap breaks a text at blanks into lines; most is their maximum width in columns. It breaks a longer word at the end
// of the line.
func wrap(text string, most int) []string {
	if textWidth(text) <= most {
		return []string{text}
	}
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && textWidth(line)+1+textWidth(word) <= most {
			line += " " + word
			continue
		}
		if line != "" {
			lines = append(lines, line)
		}
		for textWidth(word) > most {
			head := headOf(word, most)
			lines, word = append(lines, head), word[len(head):]
		}
		line = word
	}
	if line != "" || lines == nil {
		lines = append(lines, line)
	}
	return lines
}

// headOf returns the beginning of a text, at least one character; most is the maximum width in columns.
func headOf(text string, most int) string {
	taken := 0
	for i, r := range text {
		if taken += runeWidth(r); taken > most && i > 0 {
			return text[:i]
		}
	}
	return text
}

// cutTo cuts a text to at most n columns.
func cutTo(s string, n int) string {
	if textWidth(s) <= n {
		return s
	}
	if n <= 1 {
		return cutMark
	}
	return headOf(s, n-1) + cutMark
}

// textWidth returns the width of a text in columns of a terminal.
func textWidth(s string) (n int) {
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case slices.Contains([]width.Kind{width.EastAsianWide, width.EastAsianFullwidth}, width.LookupRune(r).Kind()):
		return 2
	}
	return 1
}

// seconds returns a duration for people: 3.4 s.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// secondsOf is like seconds, for a number of milliseconds.
func secondsOf(ms int64) string { return seconds(time.Duration(ms) * time.Millisecond) }

// mebibytes returns a size for people: 12 MiB, 3.4 MiB; in bytes if that would be 0.
func mebibytes(bytes int64) string {
	const mib = 1 << 20
	switch {
	case bytes >= 10*mib || bytes%mib == 0 && bytes > 0:
		return fmt.Sprintf("%d MiB", (bytes+mib/2)/mib)
	case bytes >= mib/10:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/mib)
	}
	return count(int(bytes), "byte")
}

// count returns a number with a noun: 1 image, 2 images.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
