package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonText returns a text as it is written between the quotes of a JSON string.
func jsonText(text string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a string always has a form
	return bytes.TrimSuffix(b.Bytes(), []byte("\"\n"))[1:]
}

// hidden adds encoded forms in which a text could pass unnoticed, each with the same form of its replacement.
func hidden(text, put string, add func(pair)) {
	lower := pair{find: []byte(hex.EncodeToString([]byte(text))), put: []byte(hex.EncodeToString([]byte(put)))}
	add(lower)
	add(pair{find: bytes.ToUpper(lower.find), put: bytes.ToUpper(lower.put)})
	for _, code := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for _, p := range inBase64(code, text, put) {
			add(p)
			if code == base64.RawStdEncoding { // in JSON, in a query
				for _, write := range []func(string) string{jsonStyle{slash: true}.write, jsonStyle{extra: "+", upper: true}.write,
					url.QueryEscape} {
					add(pair{find: []byte(write(string(p.find))), put: []byte(write(string(p.put)))})
				}
			}
		}
	}
}

// maxEdged bounds the length of values whose edges in base64 are searched: each form contains the value's whole
// text.
const maxEdged = 256

// inBase64 returns the base64 forms of a text inside a longer one, for each offset in a group of three bytes. A
// character at the text's edge also contains bits of its neighbour: there is a form for each value of these bits.
// None of the bits is kept, because the neighbour may be the value again. For each edge there is also a form
// without that character, for an encoding that is cut there. A long text has only the form without both edges,
// which reveals at most ten bits.
func inBase64(code *base64.Encoding, text, put string) (forms []pair) {
	for before := range 3 {
		// part encodes a text; if first or last is not a byte, it leaves out the characters at that edge.
		part := func(s string, first, last int) []byte {
			all := append(make([]byte, before), s...)
			from, to := (8*before+5)/6, 8*(before+len(s))/6
			if first >= 0 && before > 0 {
				all[before-1], from = byte(first), 8*before/6
			}
			if last >= 0 {
				to = (8*(before+len(s)) + 5) / 6
			}
			return []byte(code.EncodeToString(append(all, byte(max(last, 0))))[from:to])
		}
		fronts, free := 1<<(8*before%6), (6-8*(before+len(text))%6)%6
		if len(text) > maxEdged {
			forms = append(forms, pair{find: part(text, -1, -1), put: part(put, -1, -1)})
			continue
		}
		for first := -1; first < fronts; first++ {
			for last := -1; last < 1<<free; last++ {
				next := last
				if last > 0 {
					next = last << (8 - free)
				}
				forms = append(forms, pair{find: part(text, first, next), put: part(put, min(first, 0), min(last, 0))})
			}
		}
	}
	return forms
}

// spelled adds forms that write each byte as a number.
func spelled(text, put string, add func(pair)) {
	number := func(format, between string) {
		write := func(s string) string {
			var b strings.Builder
			for i, c := range []byte(s) {
				if i > 0 {
					b.WriteString(between)
				}
				fmt.Fprintf(&b, format, c)
			}
			return b.String()
		}
		add(pair{find: []byte(write(text)), put: []byte(write(put))})
	}
	for _, digits := range []string{"%02x", "%02X"} {
		for _, between := range []string{" ", ":", "-"} { // of a dump, of a fingerprint
			number(digits, between)
		}
		for _, before := range []string{`\x`, "%%", `\u00`, "&#x"} {
			number(before+digits+strings.Repeat(";", strings.Count(before, "&")), "")
		}
		for _, between := range []string{",", ", "} {
			number("0x"+digits, between)
		}
	}
	number("&#%d;", "")
	for _, between := range []string{",", ", ", " "} { // of a Buffer in JSON
		number("%d", between)
	}
}

// fitted pads or cuts a text to n bytes, so that a body's declared length stays correct.
func fitted(text []byte, n int) []byte {
	return append(bytes.Clone(text[:min(n, len(text))]), bytes.Repeat([]byte("x"), max(0, n-len(text)))...)
}

// escaped adds the forms of a text in JSON, HTML, a URL, or in another case, as common encoders write them.
func escaped(text, put string, add func(pair)) {
	add(pair{find: []byte(strings.ToLower(text)), put: []byte(strings.ToLower(put))})
	add(pair{find: []byte(strings.ToUpper(text)), put: []byte(strings.ToUpper(put))})
	same := []byte(put)
	written := map[string]bool{text: true} // most texts have most forms in common
	form := func(s string) {
		if !written[s] {
			written[s] = true
			add(pair{find: []byte(s), put: same})
		}
	}
	inJSON := []string{text}
	isJSON := map[string]bool{text: true}
	for _, extra := range []string{"", "<>&", "<>&'", "<>&'=", "<>&'\"", "<>&'\"+`"} {
		for style := range 16 {
			write := jsonStyle{extra: extra, upper: style&1 != 0, slash: style&2 != 0}.write
			s := write(text)
			if style&4 != 0 { // Python, PHP, .NET
				s = jsonStyle{upper: style&8 != 0}.ascii(s)
			}
			for _, s := range []string{s, write(s)} { // JSON in JSON
				if !isJSON[s] {
					isJSON[s] = true
					inJSON = append(inJSON, s)
				}
			}
		}
	}
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		same := wide(put, order)
		for _, s := range inJSON {
			add(pair{find: wide(s, order), put: same})
		}
	}
	for _, s := range inJSON {
		form(s)
	}
	for _, kept := range []string{"-_.~", "-_.!~*'()", "-_.~/", "-_.*", "-_.", ";,/?:@&=+$#-_.!~*'()", "$&+=:@-_.~"} {
		upper := percent(text, kept)
		for _, s := range []string{upper, strings.ReplaceAll(upper, "%20", "+")} {
			form(s)
			form(lowerPercent(s))
			form(strings.ReplaceAll(s, "%", "%25")) // a URL in a URL
		}
	}
	for _, quote := range []string{"&quot;", "&#34;", "&#x22;"} {
		for _, apostrophe := range []string{"'", "&#39;", "&#039;", "&#x27;", "&apos;"} {
			base := []string{"&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, quote, "'", apostrophe}
			for _, more := range [][]string{nil, {"/", "&#x2F;"}, {"/", "&#x2F;", "`", "&#x60;", "=", "&#x3D;"},
				{"`", "&#x60;", "=", "&#x3D;"}, {"+", "&#x2B;"}, {"+", "&#43;"}} {
				s := strings.NewReplacer(append(slices.Clip(base), more...)...).Replace(text)
				form(s)
				form(strings.ReplaceAll(s, "&", "&amp;"))
				for _, style := range []string{"&#x%X;", "&#%d;"} {
					form(asciiOnly(s, style))
				}
			}
		}
	}
	for _, all := range []string{percent(text, ""), lowerPercent(percent(text, ""))} {
		form(all)
	}
	for _, style := range []string{"&#x%X;", "&#x%x;", "&#%d;"} {
		all := others(text, "", func(c rune) string { return fmt.Sprintf(style, c) })
		form(all) // rare, except for a -
		form(others(text, " !#$%()*+,-./:;=?@[]^_{|}~", func(c rune) string { return fmt.Sprintf(style, c) }))
	}
}

// others returns a text in which write replaces every character except letters, digits and the characters in
// kept.
func others(text, kept string, write func(rune) string) string {
	var b strings.Builder
	for _, c := range text {
		if strings.ContainsRune(letters, c) || strings.ContainsRune(kept, c) {
			b.WriteRune(c)
		} else {
			b.WriteString(write(c))
		}
	}
	return b.String()
}

// asciiOnly writes characters outside ASCII in the given style.
func asciiOnly(text, style string) string {
	var b strings.Builder
	for _, c := range text {
		if c < utf8.RuneSelf {
			b.WriteRune(c)
		} else {
			fmt.Fprintf(&b, style, c)
		}
	}
	return b.String()
}

func percent(text, kept string) string {
	return others(text, kept, func(c rune) string {
		var b strings.Builder
		for _, one := range []byte(string(c)) {
			fmt.Fprintf(&b, "%%%02X", one)
		}
		return b.String()
	})
}

// lowerPercent writes the digits of percent-encodings in lower case.
func lowerPercent(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return string(b)
}

// jsonStyle encodes a text like a JSON encoder does between quotes.
type jsonStyle struct {
	extra string // characters written as \u and digits, beside control characters
	upper bool   // upper-case digits
	slash bool   // escapes / as \/: PHP
}

func (j jsonStyle) digits() string {
	if j.upper {
		return "\\u%04X"
	}
	return "\\u%04x"
}

// ascii encodes like write, and also writes characters outside ASCII as digits.
func (j jsonStyle) ascii(text string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(text)) {
		if unit < 0x80 {
			b.WriteByte(byte(unit))
		} else {
			fmt.Fprintf(&b, j.digits(), unit)
		}
	}
	return b.String()
}

func (j jsonStyle) write(text string) string {
	var b strings.Builder
	for _, c := range text {
		short := strings.IndexRune("\"\\\b\f\n\r\t", c)
		switch {
		case strings.ContainsRune(j.extra, c):
			fmt.Fprintf(&b, j.digits(), c)
		case short >= 0:
			b.WriteString(`\` + `"\bfnrt`[short:short+1])
		case c == '/' && j.slash:
			b.WriteString(`\/`)
		case c < ' ':
			fmt.Fprintf(&b, j.digits(), c)
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// wide returns a text in UTF-16.
func wide(text string, order binary.AppendByteOrder) []byte {
	var b []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		b = order.AppendUint16(b, unit)
	}
	return b
}

// collection holds pairs; only the first pair for each text to find is kept.
type collection struct {
	pairs []pair
	seen  map[[sha256.Size]byte]bool
}

func (c *collection) add(p pair) {
	sum := sha256.Sum256(p.find)
	if c.seen[sum] {
		return
	}
	if c.seen == nil {
		c.seen = map[[sha256.Size]byte]bool{}
	}
	c.seen[sum] = true
	c.pairs = append(c.pairs, p)
}
