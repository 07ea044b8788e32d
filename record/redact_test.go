package record

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"
	"unsafe"

	"github.com/unitask/unitask/internal/attack"
)

// shows are ways to print a secret, each independent of this package's code.
var shows = map[string]func(s string, r *rand.Rand) string{
	"plain": func(s string, _ *rand.Rand) string { return "key=" + s + "&" },
	"base64 of a longer text": func(s string, r *rand.Rand) string {
		return base64.StdEncoding.EncodeToString([]byte(text(r) + s + text(r)))
	},
	"base64url of a longer text": func(s string, r *rand.Rand) string {
		return base64.RawURLEncoding.EncodeToString([]byte(text(r) + s + text(r)))
	},
	"hex": func(s string, r *rand.Rand) string { return hex.EncodeToString([]byte(text(r) + s + text(r))) },
	"HEX": func(s string, r *rand.Rand) string {
		return strings.ToUpper(hex.EncodeToString([]byte(text(r) + s + text(r))))
	},
	"a Buffer": func(s string, _ *rand.Rand) string { return "<Buffer " + fmt.Sprintf("% x", s) + ">" },
	"an array": func(s string, _ *rand.Rand) string {
		return strings.ReplaceAll(fmt.Sprint([]byte(s)), " ", ", ")
	},
	"a query": func(s string, _ *rand.Rand) string { return "https://x.example/?a=" + url.QueryEscape(s) + "&b" },
	"a path":  func(s string, _ *rand.Rand) string { return "https://x.example/" + url.PathEscape(s) + "/b" },
	"JSON":    func(s string, _ *rand.Rand) string { b, _ := json.Marshal(map[string]string{"k": s}); return string(b) },
	"JSON, twice": func(s string, _ *rand.Rand) string {
		b, _ := json.Marshal(map[string]string{"k": s})
		b, _ = json.Marshal(string(b))
		return string(b)
	},
	"JSON in a query": func(s string, _ *rand.Rand) string {
		b, _ := json.Marshal(map[string]string{"k": s})
		return url.QueryEscape(string(b))
	},
	"a query in a query": func(s string, _ *rand.Rand) string { return url.QueryEscape("a=" + url.QueryEscape(s)) },
	"all escaped": func(s string, _ *rand.Rand) string {
		var out strings.Builder
		for _, u := range utf16.Encode([]rune(s)) {
			fmt.Fprintf(&out, "\\u%04x", u)
		}
		return out.String()
	},
	"upper case": func(s string, _ *rand.Rand) string { return upperASCII(s) },
	"lower case": func(s string, _ *rand.Rand) string { return strings.ToLower(s) },
	"UTF-16, little": func(s string, _ *rand.Rand) string {
		var out []byte
		for _, u := range utf16.Encode([]rune(s)) {
			out = append(out, byte(u), byte(u>>8))
		}
		return string(out)
	},
	"UTF-16, big": func(s string, _ *rand.Rand) string {
		var out []byte
		for _, u := range utf16.Encode([]rune(s)) {
			out = append(out, byte(u>>8), byte(u))
		}
		return string(out)
	},
	"base64 in lines": func(s string, r *rand.Rand) string {
		return wrap(base64.StdEncoding.EncodeToString([]byte("-------"+text(r)+s+text(r)+"....")), 8+r.IntN(70),
			[]string{"\n", "\r\n", "\n    ", `\n`, `\r\n`, "\\n' +\n  '", "',\n  '"}[r.IntN(7)])
	},
	"base64 in short lines": func(s string, r *rand.Rand) string {
		return wrap(base64.StdEncoding.EncodeToString([]byte(s)), 4+r.IntN(4), "\n")
	},
	"hex in lines": func(s string, r *rand.Rand) string {
		return wrap(hex.EncodeToString([]byte("----"+text(r)+s)), 2*(4+r.IntN(30)), "\n")
	},
	"0x": func(s string, _ *rand.Rand) string {
		return strings.ReplaceAll(strings.TrimSuffix(fmt.Sprintf("% #x", s), " "), " ", ", ")
	},
	"hex escapes": func(s string, _ *rand.Rand) string { return strings.ReplaceAll(fmt.Sprintf("% x", " "+s), " ", `\x`) },
	"a Uint8Array": func(s string, _ *rand.Rand) string {
		var out strings.Builder
		fmt.Fprintf(&out, "Uint8Array(%d) [", len(s))
		for i, b := range []byte(s) {
			if i > 0 {
				out.WriteString(",")
			}
			if i%12 == 0 {
				out.WriteString("\n ")
			}
			fmt.Fprintf(&out, " %3d", b)
		}
		return out.String() + "\n]"
	},
	"a Uint8Array in JSON": func(s string, r *rand.Rand) string {
		var list []string
		for i, b := range []byte(s) {
			list = append(list, fmt.Sprintf([]string{`"%d":%d`, "\n  \"%d\": %d", "\n  '%d': %d"}[r.IntN(3)], i, b))
		}
		return "{" + strings.Join(list, ",") + "}"
	},
	"bytes, each in a line": func(s string, _ *rand.Rand) string {
		b, _ := json.MarshalIndent(json.RawMessage(strings.ReplaceAll(fmt.Sprint([]byte(s)), " ", ",")), "", "  ")
		return string(b)
	},
	"hex, reversed": func(s string, _ *rand.Rand) string {
		b := []byte(hex.EncodeToString([]byte(s)))
		reverse(b)
		return string(b)
	},
	"reversed": func(s string, _ *rand.Rand) string { b := []byte(s); reverse(b); return string(b) },
	"base64, reversed": func(s string, _ *rand.Rand) string {
		b := []byte(base64.StdEncoding.EncodeToString([]byte(s)))
		reverse(b)
		return string(b)
	},
	"twice, overlapping itself": func(s string, _ *rand.Rand) string { return s + s + s[1:] + s[:len(s)-1] + s },
}

// upperASCII leaves other letters unchanged, because ß in capitals can't be converted back.
func upperASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}, s)
}

// wrap puts sep after each n characters.
func wrap(s string, width int, sep string) string {
	var lines []string
	for len(s) > width {
		lines = append(lines, s[:width])
		s = s[width:]
	}
	return strings.Join(append(lines, s), sep)
}

func reverse(b []byte) {
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
}

func text(r *rand.Rand) string {
	return strings.Repeat("·", r.IntN(4)) + strings.Repeat("-", r.IntN(5))
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+= \"\\<&'\n\té€"

func randomSecret(r *rand.Rand) string {
	runes := []rune(letters)
	for {
		var s strings.Builder
		for range MinSecret + r.IntN(40) {
			s.WriteRune(runes[r.IntN(len(runes))])
		}
		// A secret of mostly backslashes is not found if it is escaped twice.
		if len(unescaped(s.String())) >= minCanonical {
			return s.String()
		}
	}
}

// However a secret is printed and split, no useful part of it is passed on, and the text around it is.
func TestRedact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	rounds := 10_000
	if testing.Short() {
		rounds = 500
	}
	for range rounds / len(shows) {
		secret := randomSecret(r)
		red, err := NewRedactor(Secrets{Given: map[string]string{"A": secret, "B": randomSecret(r)}})
		if err != nil {
			t.Fatal(err)
		}
		for name, show := range shows {
			shown := show(secret, r)
			whole := "before " + shown + " after"
			var out bytes.Buffer
			w := red.Writer(&out)
			for rest := whole; rest != ""; {
				n := min(1+r.IntN(9), len(rest))
				if _, err := w.Write([]byte(rest[:n])); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			got := out.String()
			if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") || !strings.Contains(got, Redacted) {
				t.Fatalf("%s of %q: %q became %q", name, secret, whole, got)
			}
			for _, form := range forms(secret) {
				if strings.Contains(strings.ToLower(got), strings.ToLower(form)) {
					t.Fatalf("%s of %q: %q is left of %q in %q", name, secret, form, whole, got)
				}
			}
		}
	}
}

// forms are the parts of a secret that must not be left.
func forms(secret string) (list []string) {
	add := func(s string) {
		if len(s) >= MinSecret {
			b := []byte(s)
			reverse(b)
			list = append(list, s, string(b))
		}
	}
	b := []byte(secret)
	add(secret)
	add(url.QueryEscape(secret))
	add(url.PathEscape(secret))
	add(hex.EncodeToString(b))
	add(fmt.Sprintf("% x", b))
	add(strings.Trim(fmt.Sprint(b), "[]"))
	for shift := range 3 {
		text := base64.RawURLEncoding.EncodeToString(append(make([]byte, shift), b...))
		core := text[(8*shift+5)/6 : 8*(shift+len(b))/6]
		add(core)
		add(strings.NewReplacer("-", "+", "_", "/").Replace(core))
	}
	return list
}

func newKey(body int) (text string, lines []string) {
	r := rand.New(rand.NewPCG(7, 7))
	der := make([]byte, body)
	for i := range der {
		der[i] = byte(r.Uint32())
	}
	text = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	lines = strings.Split(strings.TrimSpace(text), "\n")
	return text, lines[1 : len(lines)-1]
}

// Forms of secrets that programs print by accident, and how much of a secret is left: no 8 characters in a row.
func TestAttackRedaction(t *testing.T) {
	key, lines := newKey(1700)
	block, _ := pem.Decode([]byte(key))
	account := `{"type": "service_account", "private_key_id": "0123456789abcdef0123", "private_key": ` + jsonText(key) +
		`, "nested": {"list": ["first-leaf-value", 7, true, null]}}`
	inspect := func(s string) string { // as Node prints a long string of an object
		var out []string
		for line := range strings.Lines(s) {
			out = append(out, "    '"+strings.TrimSuffix(line, "\n")+`\n'`)
		}
		return "{\n  key:\n" + strings.Join(out, " +\n") + "\n}"
	}
	long := strings.Repeat("abc", 3) + strings.Repeat("0123456789-long-token-", 20)
	for _, c := range []struct{ name, secret, printed, leak string }{
		{"a PEM", key, key, lines[3]},
		{"a PEM with CRLF", key, strings.ReplaceAll(key, "\n", "\r\n"), lines[3]},
		{"a PEM in an object", key, inspect(key), lines[3]},
		{"a PEM in JSON", key, jsonText(key), lines[3]},
		{"a PEM by lines", key, strings.Join(lines, "\n---\n"), lines[3]},
		{"a line of a PEM", key, "> " + lines[5] + " <", lines[5]},
		{"a PEM's body in one line", key, strings.Join(lines, ""), lines[3]},
		{"a PEM's body in other lines", key, wrap(strings.Join(lines, ""), 76, "\n"), strings.Join(lines, "")[160:200]},
		{"what a PEM holds, in hex", key, hex.EncodeToString(block.Bytes), hex.EncodeToString(block.Bytes[100:120])},
		{"what a PEM holds, as a Buffer", key, fmt.Sprintf("<Buffer % x ... 1650 more bytes>", block.Bytes[:50]),
			fmt.Sprintf("% x", block.Bytes[20:30])},
		{"base64 of a PEM", key, base64.StdEncoding.EncodeToString([]byte(key)),
			base64.StdEncoding.EncodeToString([]byte(key))[400:440]},
		{"base64 of a PEM in lines", key, wrap(base64.StdEncoding.EncodeToString([]byte(key)), 76, "\n"),
			base64.StdEncoding.EncodeToString([]byte(key))[400:420]},
		{"hex of a PEM", key, hex.EncodeToString([]byte(key)), hex.EncodeToString([]byte(lines[3]))},
		{"a leaf of JSON behind a mark of byte order", "\ufeff" + account, "first-leaf-value", "first-leaf"},
		{"a leaf of JSON", account, "first-leaf-value", "first-leaf"},
		{"a key's id of JSON", account, "id=0123456789abcdef0123", "0123456789"},
		{"a PEM in JSON, parsed", account, key, lines[3]},
		{"a PEM in JSON, parsed and printed in an object", account, inspect(key), lines[3]},
		{"a PEM in JSON, parsed, in base64", account, base64.StdEncoding.EncodeToString([]byte(key)),
			base64.StdEncoding.EncodeToString([]byte(key))[400:440]},
		{"JSON, parsed and printed again", account, indented(account), lines[3]},
		{"JSON in JSON", jsonText(account), "first-leaf-value", "first-leaf"},
		{"blanks trimmed", "  padded-secret\n", "[padded-secret]", "padded"},
		{"blanks trimmed, in base64", "  padded-secret\n", base64.StdEncoding.EncodeToString([]byte("padded-secret")),
			"cGFkZGVk"},
		{"a URL's password", "postgres://user:correct%20horse@db/x", "password: correct horse", "horse"},
		{"a lower-cased name", "Token-ABCDEFGH", "getaddrinfo ENOTFOUND token-abcdefgh.example", "abcdefgh"},
		{"an upper-cased value", "Token-abcdefgh", "TOKEN-ABCDEFGH", "ABCDEFGH"},
		{"the start of a long Buffer", long, fmt.Sprintf("<Buffer % x ... 399 more bytes>", long[:50]),
			fmt.Sprintf("% x", long[:8])},
		{"the start of a long Uint8Array", long, strings.ReplaceAll(fmt.Sprint([]byte(long[:100])), " ", ", ") +
			"... 349 more items", "97, 98, 99"},
		{"a hex key, decoded", "00112233445566778899aabbccddeeff", "<Buffer 00 11 22 33 44 55 66 77 88 99 aa bb cc dd ee ff>",
			"44 55"},
		{"a hex key in capitals, decoded", "0A1B2C3D4E5F60718293", "0a 1b 2c 3d 4e 5f 60 71 82 93", "4e 5f"},
		{"UTF-16 that is not ASCII", "schlüssel-€uro",
			string([]byte("s\x00c\x00h\x00l\x00\xfc\x00s\x00s\x00e\x00l\x00-\x00\xac\x20u\x00r\x00o\x00")), "s\x00e"},
		{"an emoji, escaped", "key-\U0001F511-of-mine", `key-\ud83d\udd11-of-mine`, "of-mine"},
		{"every second one of two", "first-secret-1", "first-secret-1first-secret-1", "first"},
	} {
		red, err := NewRedactor(Secrets{Given: map[string]string{"A": c.secret}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(c.printed, c.leak) && c.name != "JSON, parsed and printed again" {
			t.Errorf("%s: nothing would leak: %q", c.name, c.printed)
		}
		saw := "hidden"
		if got := red.String(c.printed); strings.Contains(got, c.leak) || !strings.Contains(got, Redacted) {
			saw = "shown: " + got
		}
		attack.Check(t, "printed: "+c.name, "hidden", saw)
	}
}

// Where a secret ends its base64 text, no character that depends on its last bits stays.
func TestRedactsEndOfBase64(t *testing.T) {
	for _, secret := range []string{"sk-live-12", "sk-live-123", "sk-live-1234"} {
		for _, before := range []string{"", "a", "ab"} {
			red, err := NewRedactor(Secrets{Given: map[string]string{"A": secret}})
			if err != nil {
				t.Fatal(err)
			}
			text := base64.StdEncoding.EncodeToString([]byte(before + secret))
			got := red.String(text)
			attack.Check(t, fmt.Sprintf("the end of base64 of %q", before+secret), "",
				strings.Trim(got[strings.LastIndex(got, Redacted)+len(Redacted):], "="))
		}
	}
}

func jsonText(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func indented(s string) string {
	var b bytes.Buffer
	_ = json.Indent(&b, []byte(s), "", "  ")
	return b.String()
}

// A key of 8 KiB is accepted, with all its searched forms.
func TestRedactLongKeys(t *testing.T) {
	key, lines := newKey(6200)
	if len(key) < 8<<10 {
		t.Fatal(len(key))
	}
	red, err := NewRedactor(Secrets{Given: map[string]string{"A": key}})
	if err != nil {
		t.Fatal(err)
	}
	if got := red.String("x" + key + "y"); got != "x"+Redacted+"y" {
		t.Errorf("%q", got)
	}
	if got := red.String(lines[100]); got != Redacted {
		t.Errorf("%q", got)
	}
	size := 0
	for _, m := range []*automaton{red.given.plain, red.given.escaped, red.given.hex, red.given.base64,
		red.given.decimal} {
		size += len(m.nodes) * int(unsafe.Sizeof(acNode{}))
	}
	if per := size / len(key); per > 2500 {
		t.Errorf("%d bytes of memory for each of a key", per)
	}
	for n, ok := range map[int]bool{MaxSecrets: true, MaxSecrets + 1: false} {
		if _, err := NewRedactor(Secrets{Given: map[string]string{"A": strings.Repeat("long", n/4) +
			strings.Repeat("x", n%4)}}); (err == nil) != ok {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// Only a possible beginning of a secret is held back: an endless stream of such text needs limited memory.
func TestRedactIsBounded(t *testing.T) {
	secret := "0000-secret-" + strings.Repeat("0", 100)
	red, err := NewRedactor(Secrets{Given: map[string]string{"A": secret}})
	if err != nil {
		t.Fatal(err)
	}
	for _, endless := range []string{"\x00", "\\", "\r", "\n", " ", "0", "0 ", "0x", "48,\"", `48,"1"`, `48,"1":`,
		"48,\"1", "%", "%25", "3030", "48, ", "MDAw", "MDAwMC1z\n", `\u0030`, "0000-secret-", "0\x00", "'", "' +\n '"} {
		w := red.Writer(io.Discard).(*redacting)
		for range 200 {
			if _, err := w.Write([]byte(strings.Repeat(endless, 1000))); err != nil {
				t.Fatal(err)
			}
			if most := 12 * len(secret) * maxGap; len(w.pending) > most || len(w.hidden) > most {
				t.Fatalf("%q: %d bytes are held", endless, len(w.pending))
			}
		}
	}
}

func TestRedactNothing(t *testing.T) {
	if r, err := NewRedactor(Secrets{}); r != nil || err != nil || r.String("x") != "x" {
		t.Errorf("%v %v", r, err)
	}
	red, err := NewRedactor(Secrets{Given: map[string]string{"A": "secret-value"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"", "secret-valu", "secretsecret-secret-valuf", "SECRET", "tick 7\n", "100%\n",
		base32.StdEncoding.EncodeToString([]byte("secret-value")), strings.Repeat("secret-valu ", 1000)} {
		if got := red.String(s); got != s {
			t.Errorf("%.60q became %.60q", s, got)
		}
	}
	// Text without a secret is not held back.
	var out bytes.Buffer
	w := red.Writer(&out)
	if _, err := w.Write([]byte("tick\n")); err != nil || out.String() != "tick\n" {
		t.Errorf("%q %v", out.String(), err)
	}
	if _, err := w.Write([]byte("secr")); err != nil || out.String() != "tick\n" {
		t.Errorf("%q %v", out.String(), err)
	}
	// A line is passed on when it ends, even if its end may begin a secret.
	key, _ := newKey(1700)
	if red, err = NewRedactor(Secrets{Given: map[string]string{"A": key, "B": "0123456789abcdef"}}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"done\n", "took 12 ms\n", "step 7\n", "A\n", "0\n", "a b c d\r\n", "progress: 50%\n",
		"\"quoted\"\n"} {
		out.Reset()
		w = red.Writer(&out)
		if _, err := w.Write([]byte(line)); err != nil ||
			strings.TrimRight(out.String(), "\r\n") != strings.TrimRight(line, "\r\n") {
			t.Errorf("of %q, %q is passed on", line, out.String())
		}
	}
}

// Only secrets are removed, nothing is added, and the split does not matter.
func FuzzRedact(f *testing.F) {
	f.Add("secret-value", "a secret-value b", uint8(3))
	f.Add("aaaaaa", "aaaaaaaaaaaab", uint8(1))
	f.Add("se\\cr\"et%", `x \u0073e\\cr\"et%25 73655c 0x73, 115, 101`, uint8(0))
	f.Add("{\"a\":\"leaf-value\"}", "bGVhZi12YWx1ZQ==\nbGVhZi12\nYWx1ZQ", uint8(2))
	f.Add("line one of it\nline two of it\n", "l\x00i\x00n\x00e\x00 \x00o", uint8(4))
	f.Fuzz(func(t *testing.T, secret, text string, step uint8) {
		if len(secret) < MinSecret || len(secret) > 200 || len(text) > 4096 {
			return
		}
		red, err := NewRedactor(Secrets{Given: map[string]string{"A": secret}})
		if err != nil {
			return
		}
		whole := red.String(text)
		var out strings.Builder
		w := red.Writer(&out)
		for rest := text; rest != ""; {
			n := min(int(step)+1, len(rest))
			_, _ = w.Write([]byte(rest[:n]))
			rest = rest[n:]
		}
		_ = w.Close()
		if out.String() != whole {
			t.Errorf("%q in %q: %q or %q", secret, text, whole, out.String())
		}
		left := whole
		for part := range strings.SplitSeq(whole, Redacted) {
			if !strings.Contains(text, part) {
				t.Errorf("%q in %q: %q was not there", secret, text, part)
			}
		}
		if !strings.Contains(text, Redacted) && strings.Contains(left, secret) && !strings.Contains(Redacted, secret) &&
			!strings.Contains(secret, "[") && !strings.Contains(secret, "]") {
			t.Errorf("%q is left in %q", secret, left)
		}
	})
}
