package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// What the code prints is not trusted, and a terminal obeys what it is sent: OSC 52 sets
// the clipboard, others clear the screen, move the cursor or answer in the user's name
// (ECMA-48; "ctlseqs" of xterm). So control characters are shown as \x1b and the like,
// the two halves of C1 among them (a byte, and U+0080 to U+009F), and so are those that
// turn the direction of text. A line's end, a carriage return, a tab and colours pass:
// git does the same with what a server says (sideband.allowControlCharacters).

// terminal shows the control characters of what is written to it. Close it.
type terminal struct {
	w        io.Writer
	moves    bool   // sequences that move the cursor and erase pass too: the code has this terminal
	held     []byte // the beginning of a sequence or a character
	coloured bool   // and not reset by us
	out      []byte
}

// maxColour bounds a sequence that sets colours, in bytes.
const maxColour = 64

func (t *terminal) Write(p []byte) (int, error) {
	text := append(t.held, p...)
	t.out = t.out[:0]
	for len(text) > 0 {
		n, whole := t.next(text, false)
		if !whole {
			break
		}
		text = text[n:]
	}
	t.held = append([]byte(nil), text...)
	if len(t.out) > 0 {
		if _, err := t.w.Write(t.out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Close shows what was held, and ends colours.
func (t *terminal) Close() error {
	t.out = t.out[:0]
	for text := t.held; len(text) > 0; {
		n, _ := t.next(text, true)
		text = text[n:]
	}
	t.held = nil
	if t.coloured {
		t.out = append(t.out, "\x1b[0m"...)
		t.coloured = false
	}
	if len(t.out) == 0 {
		return nil
	}
	_, err := t.w.Write(t.out)
	return err
}

// next shows what a text begins with, and says how much of it that was. It may be that
// more is needed to tell, unless last says that there is no more.
func (t *terminal) next(text []byte, last bool) (n int, whole bool) {
	switch c := text[0]; {
	case c == '\n' || c == '\r' || c == '\t':
		t.out = append(t.out, c)
		return 1, true
	case t.moves && (c == '\a' || c == '\b' || c == 0x0e || c == 0x0f):
		t.out = append(t.out, c)
		return 1, true
	case c == 0x1b && t.moves:
		n, is := move(text)
		if n == 0 && !last {
			return 0, false
		}
		if is {
			t.out, t.coloured = append(t.out, text[:n]...), true
			return n, true
		}
	case c == 0x1b:
		n, is := colour(text)
		if n == 0 && !last {
			return 0, false
		}
		if is {
			t.out, t.coloured = append(t.out, text[:n]...), true
			return n, true
		}
	case !last && !utf8.FullRune(text):
		return 0, false
	}
	r, n := utf8.DecodeRune(text)
	if r == utf8.RuneError && n == 1 || isControl(r) {
		t.out = appendVisible(t.out, r, text[:n])
	} else {
		t.out = append(t.out, text[:n]...)
	}
	return n, true
}

// colour says whether a text begins with a sequence that sets colours, and how long that
// is; 0 is that more is needed to tell.
func colour(text []byte) (n int, is bool) {
	for i, c := range text {
		switch {
		case i == 0:
		case i == 1:
			if c != '[' {
				return 1, false
			}
		case c == 'm':
			return i + 1, true
		case i == maxColour || (c < '0' || c > '9') && c != ';' && c != ':':
			return 1, false
		}
	}
	return 0, false
}

// Final bytes of control sequences that a program's own terminal needs: they move the
// cursor, erase, scroll, insert, delete, set modes and colours. What makes a terminal
// answer (c, n, q, t, x, y), as if somebody typed, is not among them, nor is what has no
// bound: titles, the clipboard.
const (
	movesFinal   = "@ABCDEFGHIJKLMPSTXZ`abdefghlmrsu"
	movesPrivate = "hlJK"      // of a sequence that begins with ?
	movesPlain   = "78=>DEHMc" // after an escape, without a bracket
	maxMove      = 64          // bytes of a sequence
)

// move says whether a text begins with such a sequence, and how long that is; 0 is that
// more is needed to tell.
func move(text []byte) (n int, is bool) {
	for i, c := range text {
		switch {
		case i == 0:
		case i == 1 && strings.IndexByte(movesPlain, c) >= 0:
			return 2, true
		case i == 1 && (c == '(' || c == ')'): // a character set: B, 0
		case i == 1 && c != '[':
			return 1, false
		case i == 2 && text[1] != '[':
			return 3, c == 'B' || c == '0'
		case i > 1 && c >= 0x40 && c <= 0x7e:
			finals := movesFinal
			if text[2] == '?' {
				finals = movesPrivate
			}
			return i + 1, strings.IndexByte(finals, c) >= 0
		case i > 1 && (c == '?' && i == 2 || c >= '0' && c <= ';') && i < maxMove:
		case i > 1:
			return 1, false
		}
	}
	return 0, false
}

// isControl says that a terminal would do something else than show a character.
func isControl(r rune) bool {
	return r < 0x20 || r >= 0x7f && r < 0xa0 || // C0, DEL and C1
		r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || // direction
		r == 0x2028 || r == 0x2029 // ends of lines
}

func appendVisible(out []byte, r rune, text []byte) []byte {
	if r == utf8.RuneError || r < 0x20 || r == 0x7f {
		return fmt.Appendf(out, "\\x%02x", text[0])
	}
	return fmt.Appendf(out, "\\u%04x", r)
}

// visible is a text of one line with all of its control characters shown, also those
// that end lines.
func visible(s string) string {
	clean := true
	for _, r := range s {
		clean = clean && r != utf8.RuneError && !isControl(r)
	}
	if clean {
		return s
	}
	var out []byte
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == '\n':
			out = append(out, `\n`...)
		case r == '\t':
			out = append(out, `\t`...)
		case r == utf8.RuneError && n == 1 || isControl(r):
			out = appendVisible(out, r, []byte(s[:n]))
		default:
			out = append(out, s[:n]...)
		}
		s = s[n:]
	}
	return string(out)
}

// visibleLine is visible, but for tabs and the newline at the end.
func visibleLine(s string) string {
	body := strings.TrimSuffix(s, "\n")
	parts := strings.Split(body, "\t")
	for i := range parts {
		parts[i] = visible(parts[i])
	}
	return strings.Join(parts, "\t") + s[len(body):]
}

// visibleJSON is a JSON text that means the same, with those control characters escaped
// too that JSON itself leaves as they are.
func visibleJSON(text []byte) []byte {
	var out []byte
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r >= 0x7f && r != utf8.RuneError && isControl(r) {
			out = fmt.Appendf(out, "\\u%04x", r)
		} else {
			out = append(out, text[i:i+n]...)
		}
		i += n
	}
	return out
}
