package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode"

	"github.com/unitask/unitask/internal/attack"
)

// attackTerminalRows are the cases of TestAttackTerminal.
var attackTerminalRows = []struct{ name, printed, want string }{
	{"text", "hello, wörld ✓ 你好\tx\r\n", "hello, wörld ✓ 你好\tx\r\n"},
	{"the clipboard, OSC 52", "\x1b]52;c;cm0gLXJmIH4=\a", `\x1b]52;c;cm0gLXJmIH4=\x07`},
	{"the clipboard, OSC 52 ended by ST", "\x1b]52;c;eA==\x1b\\", `\x1b]52;c;eA==\x1b\`},
	{"the clipboard, by C1 as UTF-8", "\u009d52;c;eA==\u009c", `\u009d52;c;eA==\u009c`},
	{"the clipboard, by a C1 byte", "\x9d52;c;eA==\x9c", `\x9d52;c;eA==\x9c`},
	{"the window's title", "\x1b]0;root@prod\a", `\x1b]0;root@prod\x07`},
	{
		name:    "a link that lies",
		printed: "\x1b]8;;http://evil.example\x1b\\good.example\x1b]8;;\x1b\\",
		want:    `\x1b]8;;http://evil.example\x1b\good.example\x1b]8;;\x1b\`,
	},
	{"the screen cleared", "\x1b[2J\x1b[3J\x1b[H", `\x1b[2J\x1b[3J\x1b[H`},
	{"the screen cleared, by C1 as UTF-8", "\u009b2J", `\u009b2J`},
	{"the screen cleared, by a C1 byte", "\x9b2J", `\x9b2J`},
	{"a full reset", "\x1bc", `\x1bc`},
	{"the cursor moved up", "\x1b[1A\x1b[2Kall good", `\x1b[1A\x1b[2Kall good`},
	{"an answer in the user's name", "\x1b[6n\x1b[c\x05", `\x1b[6n\x1b[c\x05`},
	{"a key redefined", "\x1b[0;68;\"rm\";13p", `\x1b[0;68;"rm";13p`},
	{"another screen", "\x1b[?1049h", `\x1b[?1049h`},
	{"pasting unbracketed", "\x1b[?2004l", `\x1b[?2004l`},
	{"a device control string", "\x1bP$q\"p\x1b\\", `\x1bP$q"p\x1b\`},
	{"another character set", "\x1b(0\x0e", `\x1b(0\x0e`},
	{"backspaces", "no\b\byes", `no\x08\x08yes`},
	{"a bell", "\a", `\x07`},
	{"NUL and DEL", "\x00\x7f", `\x00\x7f`},
	{"vertical tab and form feed", "\v\f", `\x0b\x0c`},
	{"text turned around", "a\u202egpj.exe\u202c", `a\u202egpj.exe\u202c`},
	{"invisible", "a\u034f\u3164\U000e0041\U000e0100\u2764\ufe0f", `a\u034f\u3164\ue0041\ue0100` + "\u2764\ufe0f"},
	{"text isolated", "\u2066x\u2069", `\u2066x\u2069`},
	{"lines ended otherwise", "a\u2028b\u2029c", `a\u2028b\u2029c`},
	{"bytes that are no UTF-8", "\xff\xc3(\xe2\x82", `\xff\xc3(\xe2\x82`},
	{"too long a form of ESC", "\xc0\x9b[2J", `\xc0\x9b[2J`},
	{"colours", "\x1b[1;31mred\x1b[0m \x1b[38:5:196mx", "\x1b[1;31mred\x1b[0m \x1b[38:5:196mx\x1b[0m"},
	{"concealed text", "\x1b[8mx", `\x1b[8mx`},
	{
		name:    "concealed, among colours",
		printed: "\x1b[1;008;31mx\x1b[38;5;1;8mx\x1b[38;2;1;2;3;8mx\x1b[38:5:1;8mx",
		want:    `\x1b[1;008;31mx\x1b[38;5;1;8mx\x1b[38;2;1;2;3;8mx\x1b[38:5:1;8mx`,
	},
	{
		name:    "concealed, behind a colour of colons",
		printed: "\x1b[38:5:1;5;8mx\x1b[48:2::1:2:3;2;0;0;8mx",
		want:    `\x1b[38:5:1;5;8mx\x1b[48:2::1:2:3;2;0;0;8mx`,
	},
	{
		name:    "the eighth colour",
		printed: "\x1b[38;5;8mx\x1b[48;2;8;8;8mx\x1b[38:5:8m\x1b[28m",
		want:    "\x1b[38;5;8mx\x1b[48;2;8;8;8mx\x1b[38:5:8m\x1b[28m\x1b[0m",
	},
	{"a colour of no end", "\x1b[" + strings.Repeat("1;", 100) + "m", `\x1b[` + strings.Repeat("1;", 100) + "m"},
	{"a sequence inside a colour", "\x1b[1\x1b[2Jm", `\x1b[1\x1b[2Jm`},
	{"a newline inside a colour", "\x1b[1\nm", "\\x1b[1\nm"},
	{"a private colour", "\x1b[>4;2m\x1b[?4m", `\x1b[>4;2m\x1b[?4m`},
	{"ESC at the end", "x\x1b", `x\x1b`},
	{"a colour cut off at the end", "x\x1b[1;3", `x\x1b[1;3`},
}

// What a terminal gets of untrusted output, however it is split.
func TestAttackTerminal(t *testing.T) {
	for _, c := range attackTerminalRows {
		for step := range len(c.printed) + 1 {
			var out bytes.Buffer
			tm := &terminal{w: &out}
			for rest := []byte(c.printed); len(rest) > 0; {
				n := min(step+1, len(rest))
				if _, err := tm.Write(rest[:n]); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if err := tm.Close(); err != nil {
				t.Fatal(err)
			}
			if step == 0 {
				attack.Check(t, "terminal: "+c.name, c.want, out.String())
			} else if out.String() != c.want {
				t.Errorf("%s, %d bytes at a time: %q", c.name, step+1, out.String())
			}
		}
		for i, shown := range []string{visible(c.printed), visibleLine(c.printed), safe(c.printed)} {
			if strings.ContainsFunc(strings.TrimSuffix(strings.ReplaceAll(shown, "\t", ""), "\n"), isControl) {
				t.Errorf("%s, by %d: %q", c.name, i, shown)
			}
		}
		text, err := json.Marshal(c.printed)
		if err != nil {
			t.Fatal(err)
		}
		var again, want string
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		if clean := visibleJSON(text); json.Unmarshal(clean, &again) != nil || again != want ||
			bytes.ContainsFunc(clean, isControl) {
			t.Errorf("%s, as JSON: %q", c.name, clean)
		}
	}
}

// No output contains control characters except the allowed ones. Any split gives the same result, and no prompt is held
// back.
func FuzzTerminal(f *testing.F) {
	f.Add([]byte("\x1b[1mx\x1b]52;c;x\a\u009b2J\xe2\x82"), uint64(1))
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		show := func(step func() int) string {
			var out bytes.Buffer
			tm := &terminal{w: &out}
			for rest := text; len(rest) > 0; {
				n := min(step(), len(rest))
				_, _ = tm.Write(rest[:n])
				rest = rest[n:]
				if len(tm.held) > maxColour {
					t.Fatalf("%d bytes are held", len(tm.held))
				}
			}
			_ = tm.Close()
			return out.String()
		}
		r := rand.New(rand.NewPCG(seed, 0))
		whole := show(func() int { return len(text) })
		if split := show(func() int { return 1 + r.IntN(5) }); split != whole {
			t.Errorf("%q: %q or %q", text, whole, split)
		}
		for rest := whole; rest != ""; {
			i := strings.IndexFunc(rest, func(r rune) bool { return isControl(r) && r != '\n' && r != '\r' && r != '\t' })
			if i < 0 {
				break
			}
			n, is := colour([]byte(rest[i:]))
			if !is {
				t.Fatalf("%q: %q", text, whole)
			}
			rest = rest[i+n:]
		}
	})
}

// Code with a terminal may move the cursor and erase. It can change no settings and request no answers.
func TestAttackTerminalMoves(t *testing.T) {
	for text, want := range map[string]string{
		"\x1b[2J\x1b[1;1H\x1b[31mx\x1b[K\b\a\x1b7\x1b8\x1bM": "same",
		"\x1b]52;c;eA==\a":                      `\x1b]52;c;eA==` + "\a",
		"\x1b]0;title\x1b\\":                    `\x1b]0;title\x1b\`,
		"\x1bPq\x1b\\":                          `\x1bPq\x1b\`,
		"\x1b[6n\x1b[c\x1b[>c":                  `\x1b[6n\x1b[c\x1b[>c`,
		"\x1b[?1;1;0S\x1b[5i":                   `\x1b[?1;1;0S\x1b[5i`,
		"\x1b[21t\x1b[?1$p":                     `\x1b[21t\x1b[?1$p`,
		"\x1b[?u\x1b[u":                         `\x1b[?u` + "\x1b[u",
		"\u009b2J":                              `\u009b2J`,
		"\x1b[" + strings.Repeat("1", 70) + "J": `\x1b[` + strings.Repeat("1", 70) + "J",
		"\x1b(\x1b]x":                           `\x1b(\x1b]x`,
	} {
		if want == "same" {
			want = text
		}
		for _, at := range []int{len(text), 1, len(text) / 2} { // split over writes
			var out strings.Builder
			term := &terminal{w: &out, moves: true}
			for _, part := range []string{text[:at], text[at:]} {
				if _, err := term.Write([]byte(part)); err != nil {
					t.Fatal(err)
				}
			}
			if err := term.Close(); err != nil {
				t.Fatal(err)
			}
			attack.Check(t, fmt.Sprintf("code with a terminal prints %.40q, cut at %d", text, at), want,
				strings.TrimSuffix(out.String(), "\x1b[0m"))
		}
	}
}

// The terminal's state after code with a terminal is as the shell had it. A mode that makes the terminal send input is
// on only while the code reads input.
func TestAttackTerminalState(t *testing.T) {
	for _, c := range []struct {
		name, printed string
		typed         bool
		want          string
	}{
		{"the other screen, no cursor", "\x1b[?1049h\x1b[?25lx", false, "\x1b[?1049h\x1b[?25lx\x1b[?25h\x1b[?1049l\x1b[0m"},
		{"and it puts them back", "\x1b[?25l\x1b[?25h", false, "\x1b[?25l\x1b[?25h\x1b[?25h\x1b[0m"},
		{"the mouse, while nothing is passed on", "\x1b[?1000h", false, `\x1b[?1000h`},
		{"the mouse, behind a mode that may be", "\x1b[?25;1003h", false, `\x1b[?25;1003h`},
		{"the mouse", "\x1b[?1003;1006h", true, "\x1b[?1003;1006h\x1b[?1006l\x1b[?1003l\x1b[0m"},
		{"the focus, while nothing is passed on", "\x1b[?1004h", false, `\x1b[?1004h`},
		{"sizes, which the terminal tells at once", "\x1b[?2048h", true, `\x1b[?2048h`},
		{"132 columns", "\x1b[?3h", true, `\x1b[?3h`},
		{"a keyboard that is locked", "\x1b[2h", true, `\x1b[2h`},
		{"nothing shown any more", "\x1b[?2026h", true, `\x1b[?2026h`},
		{"a mode with noughts before it", "\x1b[?02048h", true, `\x1b[?02048h`},
		{"characters of lines", "\x1b(0lqk", false, "\x1b(0lqk\x1b(B\x1b)B\x0f\x1b[0m"},
		{"characters of lines, by the other set", "\x0ex", false, "\x0ex\x1b(B\x1b)B\x0f"},
		{"a part that scrolls", "\x1b[2;3r", false, "\x1b[2;3r\x1b7\x1b[r\x1b8\x1b[0m"},
		{"the keypad's keys", "\x1b=", false, "\x1b=\x1b>\x1b[0m"},
		{"characters that are inserted", "\x1b[4h", false, "\x1b[4h\x1b[4l\x1b[0m"},
		{"a letter 2147483647 times", "x\x1b[2147483647b", true, `x\x1b[2147483647b`},
		{"colours on this terminal", "\x1b[38;2;255;255;255m", false, "\x1b[38;2;255;255;255m\x1b[0m"},
	} {
		var out strings.Builder
		term := &terminal{w: &out, moves: true, typed: c.typed}
		if _, err := term.Write([]byte(c.printed)); err != nil {
			t.Fatal(err)
		}
		if err := term.Close(); err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "code with a terminal leaves "+c.name, c.want, out.String())
	}
}

func TestKeys(t *testing.T) {
	now := time.Unix(100, 0)
	for typed, want := range map[string]int{"\x03": 0, "\x03\x03": 1, "\x03x\x03": 0, "\x03 \x03\x03": 1,
		"a\x03\x03b": 1} {
		stops := 0
		k := &keys{from: strings.NewReader(typed), now: func() time.Time { return now }, stop: func() { stops++ }}
		if text, err := io.ReadAll(k); err != nil || string(text) != typed || stops != want {
			t.Errorf("%q: %d stops, want %d; %q %v", typed, stops, want, text, err)
		}
	}
	stops := 0
	k := &keys{from: iotest.OneByteReader(strings.NewReader("\x03\x03")),
		now: func() time.Time { now = now.Add(3 * time.Second); return now }, stop: func() { stops++ }}
	if _, err := io.ReadAll(k); err != nil || stops != 0 {
		t.Errorf("%d stops after a pause, %v", stops, err)
	}
}

// net/http logs a server's text, which may be a bound secret, to the standard logger. That log is discarded.
func TestAttackStandardLogger(t *testing.T) {
	var written bytes.Buffer
	before := log.Writer()
	defer log.SetOutput(before)
	log.SetOutput(&written)
	if code := Main([]string{"--help"}, Streams{Stdin: strings.NewReader(""), Stdout: io.Discard,
		Stderr: io.Discard}); code != 0 {
		t.Fatal(code)
	}
	log.Print("Unsolicited response received on idle HTTP channel starting with a secret")
	attack.Check(t, "a server's words in the standard logger", "", written.String())
}

// JSON with escaped control characters has the same meaning: each of them, even beyond 16 bits.
func TestVisibleJSONMeaning(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r >= 0xd800 && r < 0xe000 || !isControl(r) {
			continue
		}
		text, err := json.Marshal(string(r))
		if err != nil {
			t.Fatal(err)
		}
		var again string
		clean := visibleJSON(text)
		if err := json.Unmarshal(clean, &again); err != nil || again != string(r) || bytes.ContainsFunc(clean, isControl) {
			t.Errorf("%U: %s means %q: %v", r, clean, again, err)
		}
	}
}
