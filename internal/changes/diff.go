package changes

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/unitask/unitask/internal/regular"
	"github.com/unitask/unitask/internal/unseen"
)

// Limits of what a diff shows. Of a larger text, and of texts after these bytes, it has only the size and the digest.
const (
	maxShown = 1 << 20  // bytes of one text
	maxDiff  = 16 << 20 // bytes of all texts
)

// Diff writes the set as a unified diff, and returns how many files it does not show as text. Untrusted code or a model
// may have chosen the texts and names. So each character that can't be seen, or that changes how a line is read, is
// written as ⟨U+202E⟩, and so is ⟨ itself.
func (s *Store) Diff(w io.Writer, set *Set) (unshown int, err error) {
	total := 0
	for _, c := range set.Changes {
		before, shown, err := s.shown(set, c.Before)
		if err != nil {
			return 0, err
		}
		after, both, err := s.shown(set, c.After)
		if err != nil {
			return 0, err
		}
		from, to := "a/"+c.Path, "b/"+c.Path
		if c.Before == "" {
			from = "/dev/null"
		}
		if c.After == "" {
			to = "/dev/null"
		}
		full := total+len(before)+len(after) > maxDiff
		var text string
		switch {
		case !shown || !both || full:
			unshown++
			text = fmt.Sprintf("--- %s\n+++ %s\nNot shown. Before: %s. After: %s.\n", Visible(from), Visible(to),
				s.size(set, c.Before), s.size(set, c.After))
		case before == after: // one is empty, and the other missing
			text = fmt.Sprintf("--- %s\n+++ %s\nThe file is empty.\n", Visible(from), Visible(to))
		default:
			total += len(before) + len(after)
			text = Unified(from, to, before, after)
		}
		if _, err := io.WriteString(w, text); err != nil {
			return 0, err
		}
	}
	return unshown, nil
}

// Unified returns the unified diff of two texts with their names. What can't be seen is escaped, as in Diff.
func Unified(from, to, before, after string) string {
	var out strings.Builder
	text := udiff.Unified(Visible(from), Visible(to), before, after)
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if n >= 2 { // after the two names
			line = Visible(line)
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

// shown returns a stored text; ok is false if it can't be shown as lines.
func (s *Store) shown(set *Set, digest string) (text string, ok bool, err error) {
	if digest == "" {
		return "", true, nil
	}
	data, err := regular.Read(s.text(set, digest), maxFileBytes)
	if err != nil || len(data) > maxShown || !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
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

// Visible escapes the characters of a line that can't be seen, or look like a blank. A tab stays.
func Visible(line string) string {
	if !strings.ContainsFunc(line, odd) {
		return line
	}
	var out strings.Builder
	for _, r := range line {
		if odd(r) {
			fmt.Fprintf(&out, "⟨U+%04X⟩", r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}

func odd(r rune) bool {
	return r != '\t' && (r == '⟨' || r == utf8.RuneError || !unicode.IsPrint(r) || unseen.Is(r))
}
