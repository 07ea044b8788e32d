package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// The code's output is not trusted, and a terminal obeys what it receives. OSC 52 sets the clipboard. Other sequences
// clear the screen, move the cursor or answer in the user's name (ECMA-48; "ctlseqs" of xterm). So control characters
// are shown as \x1b and the like. These include both forms of C1 (a byte, and U+0080 to U+009F) and the characters that
// change the direction of text. Line ends, carriage returns, tabs and colours pass: git does the same with a server's
// output (sideband.allowControlCharacters). Concealed text (SGR 8) does not count as a colour.

// terminal shows the control characters of what is written to it. Close it.
type terminal struct {
	w        io.Writer
	moves    bool   // sequences that move the cursor and erase also pass: the code has this terminal
	typed    bool   // typed text is sent to the code, so that it may enable the mouse
	held     []byte // an incomplete sequence or character
	coloured bool   // colours are set, and not reset by us
	// uncoloured leaves colours out: the user wants none, or the terminal shows their sequences as text.
	uncoloured bool
	modes      []mode // modes that differ from a terminal's defaults
	shifted    bool   // another character set may be active
	bounded    bool   // only a part of the screen may scroll
	out        []byte
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

// Close shows what was held, ends colours, and resets the parts of the terminal's state that a shell does not set
// by itself. Otherwise its prompt could be in line-drawing characters, or each movement of the mouse would be
// typed into it.
func (t *terminal) Close() error {
	t.out = t.out[:0]
	for text := t.held; len(text) > 0; {
		n, _ := t.next(text, true)
		text = text[n:]
	}
	t.held = nil
	if t.bounded {
		t.out = append(t.out, "\x1b7\x1b[r\x1b8"...) // also moves the cursor by itself
	}
	if t.shifted {
		t.out = append(t.out, "\x1b(B\x1b)B\x0f"...)
	}
	for i := len(t.modes) - 1; i >= 0; i-- {
		t.out = append(t.out, t.modes[i].undo...)
	}
	t.modes, t.shifted, t.bounded = nil, false, false
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

// next shows the beginning of a text, and returns its length. It may need more text to decide, unless last says that no
// more comes.
func (t *terminal) next(text []byte, last bool) (n int, whole bool) {
	switch c := text[0]; {
	case c == '\n' || c == '\r' || c == '\t':
		t.out = append(t.out, c)
		return 1, true
	case t.moves && (c == '\a' || c == '\b' || c == 0x0e || c == 0x0f):
		t.out, t.shifted = append(t.out, c), t.shifted || c == 0x0e
		return 1, true
	case c == 0x1b && t.moves:
		n, is := move(text)
		if n == 0 && !last {
			return 0, false
		}
		if is && t.sets(text[:n]) {
			t.out, t.coloured = append(t.out, text[:n]...), true
			return n, true
		}
	case c == 0x1b:
		n, is := colour(text)
		if n == 0 && !last {
			return 0, false
		}
		if is && t.uncoloured {
			return n, true
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

// colour reports whether a text begins with a sequence that sets colours and conceals nothing. It returns the
// sequence's length; 0 means that more text is needed.
func colour(text []byte) (n int, is bool) {
	for i, c := range text {
		switch {
		case i == 0:
		case i == 1:
			if c != '[' {
				return 1, false
			}
		case c == 'm' && conceals(string(text[2:i])):
			return 1, false
		case c == 'm':
			return i + 1, true
		case i == maxColour || (c < '0' || c > '9') && c != ';' && c != ':':
			return 1, false
		}
	}
	return 0, false
}

// conceals reports whether one of the parameters of a colour sequence is 8, except the 8 of a colour: 38;5;8.
func conceals(parameters string) bool {
	list := strings.Split(parameters, ";")
	for i := 0; i < len(list); i++ {
		first, _, own := strings.Cut(list[i], ":")
		switch strings.TrimLeft(first, "0") {
		case "8":
			return true
		case "38", "48", "58":
			if own || i+1 == len(list) { // it contains its colour, after colons
				continue
			}
			switch strings.TrimLeft(list[i+1], "0") {
			case "5":
				i += 2
			case "2":
				i += 4
			}
		}
	}
	return false
}

// Final bytes of control sequences that a program's own terminal needs: they move the cursor, erase, scroll, insert,
// delete, set modes and colours. Sequences that make a terminal answer (c, n, q, t, x, y), as if somebody typed, are
// excluded. So are sequences without a bound: titles, the clipboard.
const (
	movesFinal   = "@ABCDEFGHIJKLMPSTXZ`abdefghlmrsu"
	movesPrivate = "hlJK"      // of a sequence that begins with ?
	movesPlain   = "78=>DEHMc" // after an escape, without a bracket
	maxMove      = 64          // bytes of a sequence
	maxParameter = 5           // digits of a number in it: some terminals repeat or scroll that often
)

// move reports whether a text begins with such a sequence, and returns its length; 0 means that more text is
// needed.
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

// mode is a mode that the code may set, by the sequence's parameter, with a ? if the mode is private.
type mode struct {
	name string
	undo string // resets it to a terminal's default
	// answers means that the terminal then sends untyped data, which a shell would treat as typed if the code
	// does not read it.
	answers bool
}

// modes are the modes that screen-oriented programs need (ncurses, readline). Others make a terminal answer at
// once (2048), lock its keyboard (2), change its size (3) or delay its display (2026).
var modes = []mode{
	{"4", "\x1b[4l", false},     // characters are inserted
	{"?1", "\x1b[?1l", false},   // what the cursor's keys send
	{"?6", "\x1b[?6l", false},   // where lines are counted from
	{"?7", "\x1b[?7h", false},   // lines wrap
	{"?12", "\x1b[?12l", false}, // the cursor blinks
	{"?25", "\x1b[?25h", false}, // it is shown
	{"?47", "\x1b[?47l", false}, // the other screen
	{"?1047", "\x1b[?1047l", false},
	{"?1048", "", false}, // the cursor is kept
	{"?1049", "\x1b[?1049l", false},
	{"?1000", "\x1b[?1000l", true}, // the mouse
	{"?1002", "\x1b[?1002l", true},
	{"?1003", "\x1b[?1003l", true},
	{"?1004", "\x1b[?1004l", true}, // the window gets the focus
	{"?1005", "\x1b[?1005l", false},
	{"?1006", "\x1b[?1006l", false},
	{"?1015", "\x1b[?1015l", false},
	{"?2004", "\x1b[?2004l", false}, // brackets around what is pasted
	{"keypad", "\x1b>", false},      // what its keys send
}

// sets reports whether a sequence that move accepts may pass with its parameters, and remembers what to reset.
func (t *terminal) sets(text []byte) bool {
	switch {
	case text[1] == '(' || text[1] == ')':
		t.shifted = true
		return true
	case text[1] == '=':
		return t.set("keypad")
	case text[1] != '[':
		return true
	}
	parameters, final := string(text[2:len(text)-1]), text[len(text)-1]
	parameters, private := strings.CutPrefix(parameters, "?")
	names := strings.FieldsFunc(parameters, func(r rune) bool { return r == ';' || r == ':' })
	for i, p := range names {
		if len(p) > maxParameter {
			return false
		}
		if private {
			names[i] = "?" + p
		}
	}
	t.bounded = t.bounded || final == 'r'
	return final != 'h' && final != 'l' || t.set(names...)
}

// set reports whether these modes may be set.
func (t *terminal) set(names ...string) bool {
	var list []mode
	for _, name := range names {
		i := slices.IndexFunc(modes, func(m mode) bool { return m.name == name })
		if i < 0 || modes[i].answers && !t.typed {
			return false
		}
		if !slices.Contains(t.modes, modes[i]) && !slices.Contains(list, modes[i]) {
			list = append(list, modes[i])
		}
	}
	t.modes = append(t.modes, list...)
	return true
}

// isControl reports whether a terminal would do anything else than show a character.
func isControl(r rune) bool {
	return r < 0x20 || r >= 0x7f && r < 0xa0 || // C0, DEL and C1
		unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point) && r != 0x200c && r != 0x200d ||
		r >= 0xe0100 && r <= 0xe01ef || // invisible characters and those that set the direction, except joiners
		r == 0x2028 || r == 0x2029 || r == 0x2800 // ends of lines, a blank
}

func appendVisible(out []byte, r rune, text []byte) []byte {
	if r == utf8.RuneError || r < 0x20 || r == 0x7f {
		return fmt.Appendf(out, "\\x%02x", text[0])
	}
	return fmt.Appendf(out, "\\u%04x", r)
}

// visible returns a text of one line with all of its control characters shown, also line ends.
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

// visibleLine is like visible, except for tabs and the newline at the end.
func visibleLine(s string) string {
	body := strings.TrimSuffix(s, "\n")
	parts := strings.Split(body, "\t")
	for i := range parts {
		parts[i] = visible(parts[i])
	}
	return strings.Join(parts, "\t") + s[len(body):]
}

// visibleJSON returns a JSON text of the same meaning, in which the control characters that JSON permits are
// escaped, too.
func visibleJSON(text []byte) []byte {
	var out []byte
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r >= 0x7f && r != utf8.RuneError && isControl(r) {
			for _, unit := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, "\\u%04x", unit)
			}
		} else {
			out = append(out, text[i:i+n]...)
		}
		i += n
	}
	return out
}
