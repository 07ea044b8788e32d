package mcp

import (
	"fmt"
	"strings"
	"testing"
)

// The text that view shows is limited, whatever a file's lines look like.
func TestNumbered(t *testing.T) {
	for _, row := range []struct {
		text string
		span []int
		want string
	}{
		{"", nil, ""},
		{"a", nil, "     1\ta"},
		{"a\n\nb\n", nil, "     1\ta\n     2\t\n     3\tb\n"},
		{"a\nb\nc", []int{2, 2}, "     2\tb\n"},
		{"a\nb\nc", []int{2, -1}, "     2\tb\n     3\tc"},
		{"a\nb\nc", []int{4, 9}, ""},
	} {
		if got, err := numbered([]byte(row.text), asItIs, row.span); got != row.want || err != nil {
			t.Errorf("%q %v: %q %v", row.text, row.span, got, err)
		}
	}
	for name, text := range map[string]string{
		"one line":       strings.Repeat("ü", 4<<20),
		"many":           strings.Repeat("line\n", 2<<20),
		"long ones":      strings.Repeat(strings.Repeat("x", maxShownFile)+"\n", 8),
		"very long ones": strings.Repeat(strings.Repeat("x", 1<<20)+"\n", 8),
	} {
		got, err := numbered([]byte(text), asItIs, nil)
		if err != nil || len(got) > 3*maxShownFile || !strings.Contains(got, "show") {
			t.Errorf("%s: %d bytes %v", name, len(got), err)
		}
	}
	for _, span := range [][]int{{0, 1}, {4, 2}, {1}, {1, 2, 3}} {
		if _, err := numbered([]byte("a\nb\nc"), asItIs, span); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprint(span)) {
			t.Errorf("%v: %v", span, err)
		}
	}
	// For a file of newlines, no list of lines is made.
	newlines := []byte(strings.Repeat("\n", maxToolFile))
	if n := testing.AllocsPerRun(1, func() { _, _ = numbered(newlines, asItIs, []int{maxToolFile, -1}) }); n > 100 {
		t.Errorf("%v allocations", n)
	}
}

func TestInserted(t *testing.T) {
	for _, row := range []struct {
		text string
		line int
		want string // "" for an error
	}{
		{"", 0, "x\n"},
		{"a\nb\n", 0, "x\na\nb\n"},
		{"a\nb\n", 1, "a\nx\nb\n"},
		{"a\nb\n", 2, "a\nb\nx\n"},
		{"a\nb", 2, "a\nb\nx\n"},
		{"a\nb", 1, "a\nx\nb"},
		{"a\nb\n", 3, ""},
		{"a\nb\n", -1, ""},
	} {
		got, err := inserted([]byte(row.text), row.line, "x")
		if string(got) != row.want || (err != nil) != (row.want == "") {
			t.Errorf("%q %d: %q %v", row.text, row.line, got, err)
		}
	}
}

func asItIs(text string) string { return text }
