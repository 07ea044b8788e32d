package changes

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/unitask/unitask/internal/regular"
)

// Limits of what a diff shows. Of a larger text, and of texts after these bytes, it has only the size and the digest.
const (
	MaxShown = 1 << 20
	maxDiff  = 16 << 20
)

// Diff writes the set as a unified diff. Untrusted code or a model may have chosen the texts and names. So no line has
// a character that can't be seen or that changes how the line is read: such a character is escaped, as \u202e.
func (s *Store) Diff(w io.Writer, set *Set) error {
	total := 0
	for _, c := range set.Changes {
		before, shown, err := s.shown(set, c.Before)
		if err != nil {
			return err
		}
		after, both, err := s.shown(set, c.After)
		if err != nil {
			return err
		}
		total += len(before) + len(after)
		from, to := "a/"+c.Path, "b/"+c.Path
		if c.Before == "" {
			from = "/dev/null"
		}
		if c.After == "" {
			to = "/dev/null"
		}
		var text string
		switch {
		case !shown || !both || total > maxDiff:
			text = fmt.Sprintf("--- %s\n+++ %s\nNot shown as text. Before: %s. After: %s.\n", visible(from),
				visible(to), s.size(set, c.Before), s.size(set, c.After))
		case before == after: // one is empty, and the other missing
			text = fmt.Sprintf("--- %s\n+++ %s\nThe file is empty.\n", visible(from), visible(to))
		default:
			text = udiff.Unified(visible(from), visible(to), before, after)
		}
		for line := range strings.Lines(text) {
			if _, err := io.WriteString(w, visible(strings.TrimSuffix(line, "\n"))+"\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

// shown returns a stored text; ok is false if it can't be shown as lines.
func (s *Store) shown(set *Set, digest string) (text string, ok bool, err error) {
	if digest == "" {
		return "", true, nil
	}
	data, err := regular.Read(s.text(set, digest), MaxFileBytes)
	if err != nil || len(data) > MaxShown || !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return "", false, err
	}
	return string(data), true, nil
}

// size describes a stored text.
func (s *Store) size(set *Set, digest string) string {
	if digest == "" {
		return "no file"
	}
	st, err := os.Stat(s.text(set, digest))
	if err != nil {
		return digest
	}
	return fmt.Sprintf("%d bytes, %s", st.Size(), digest)
}

// visible escapes the characters of a line that can't be seen. A tab stays.
func visible(line string) string {
	odd := func(r rune) bool { return r != '\t' && (!unicode.IsPrint(r) || r == utf8.RuneError) }
	if !strings.ContainsFunc(line, odd) {
		return line
	}
	var out strings.Builder
	for _, r := range line {
		if odd(r) {
			quoted := strconv.QuoteRuneToASCII(r)
			out.WriteString(quoted[1 : len(quoted)-1])
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}
