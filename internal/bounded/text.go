// Package bounded cuts untrusted data to a limit: streams, readers, writers and texts. Everything that reads from a
// guest, a worker or a registry uses it.
package bounded

import (
	"strings"
	"unicode/utf8"
)

// Text returns the first limit bytes of a text, with ? in place of control characters and invalid UTF-8.
func Text(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f && c < 0xa0 || c == '\u2028' || c == '\u2029' {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
}

// Whole returns the length of a text without an incomplete character at its end.
func Whole(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if at := len(text) - n; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				return at
			}
			break
		}
	}
	return len(text)
}
