package record

import "unicode/utf8"

// views read one stream in five ways. Each view normalizes the stream's characters. So its automaton needs each
// secret only once, whatever the separators, the case, the line width and the depth of escapes.
type views struct {
	of      *automata
	plain   plainView
	escaped escapedView
	hex     hexView
	base64  base64View
	decimal decimalView
}

// newViews returns the views of a new stream. It calls hide for each secret.
func newViews(r *automata, hide func(span)) *views {
	v := &views{of: r}
	v.plain.search = search{m: r.plain, hide: hide}
	v.escaped.search = search{m: r.escaped, hide: hide}
	v.hex.search = search{m: r.hex, hide: hide}
	v.base64.search = search{m: r.base64, hide: hide}
	v.decimal.search = search{m: r.decimal, hide: hide}
	v.escaped.slash, v.hex.zero = never, never
	return v
}

// never is a position after every place in a stream.
const never = int64(1) << 62

// take reads the byte at a position.
func (v *views) take(b byte, at int64) {
	v.plain.take(b, at)
	v.escaped.take(b, at)
	v.hex.take(b, at)
	v.base64.take(b, at)
	v.decimal.take(b, at)
}

// end ends the stream.
func (v *views) end() {
	v.escaped.giveUp()
	v.hex.flush()
}

// held returns the start of the first possible secret that is not complete yet.
func (v *views) held() int64 {
	return min(v.plain.held(), v.escaped.held(), v.hex.held(), v.base64.held(), v.decimal.held())
}

// search is the state of an automaton on a view's characters.
type search struct {
	m      *automaton
	hide   func(span)
	state  int32
	starts []int64 // where the last characters began in the stream, at least as many as state is deep
	gap    int     // skipped bytes since the last character
	run    int     // characters since the view last reset
}

// character processes the next character with its position in the stream. Most characters begin no secret.
func (s *search) character(c byte, is span) {
	s.gap = 0
	s.run++
	if s.state|s.m.root[c] != 0 {
		s.advance(c, is)
	}
}

func (s *search) advance(c byte, is span) {
	if s.state = s.m.step(s.state, c); s.state == 0 {
		s.starts = s.starts[:0]
		return
	}
	n := &s.m.nodes[s.state]
	if len(s.starts) > 2*int(n.depth)+64 {
		s.starts = append(s.starts[:0], s.starts[len(s.starts)-int(n.depth):]...)
	}
	s.starts = append(s.starts, is.from)
	if n.match > 0 {
		s.hide(span{s.starts[len(s.starts)-int(n.match)], is.to})
	}
	if n.child == 0 { // no secret continues from here: hold nothing back
		s.state = n.fail
	}
}

func (s *search) depth() int { return int(s.m.nodes[s.state].depth) }

func (s *search) held() int64 {
	if s.state == 0 {
		return never
	}
	return s.starts[len(s.starts)-s.depth()]
}

// reset ends the current sequence.
func (s *search) reset() { s.state, s.starts, s.gap, s.run = 0, s.starts[:0], 0, 0 }

// skip skips a byte without meaning; most is the maximum number in a row. So an endless sequence of such bytes holds
// nothing back.
func (s *search) skip(most int) {
	if s.gap++; s.gap > most {
		s.reset()
	}
}

// Limits of what views skip in a row.
const (
	maxNULs = 3  // UTF-32
	maxGap  = 64 // a line's end and its indentation
)

// inside reports whether the text so far looks like more than the end of a word. A line end may then be inside a
// secret. Otherwise the stream would hold back each line whose last letter may begin a secret.
func (s *search) inside() bool { return s.run >= 8 || s.depth() >= 4 }

// plainView reads the stream unchanged. It skips NUL bytes, and so finds ASCII in UTF-16 and UTF-32.
type plainView struct{ search }

func (v *plainView) take(b byte, at int64) {
	if b == 0 {
		v.skip(maxNULs)
		return
	}
	v.character(b, span{at, at + 1})
}

// escapedView reads text in lower case and undoes escapes, any number of times. The escapes are those of JSON and
// JavaScript (\n, \", \u00e9, \xe9) and of URLs (%41, +). It drops backslashes, and reads a line end, also an escaped
// one, as an n. So a secret looks the same however often it was quoted.
type escapedView struct {
	search
	slash int64 // where the backslashes before the next character began, or never

	// An incomplete escape: its characters so far, and how many digits it has.
	open   [5]escapeChar
	n      int
	digits int
	high   rune    // a surrogate (ECMA-262, 6.1.4) that waits for its other half
	seen   *[]byte // also receives the characters, if not nil
}

type escapeChar struct {
	c  byte
	is span
}

func (v *escapedView) held() int64 {
	held := min(v.search.held(), v.slash)
	if v.n > 0 {
		held = min(held, v.open[0].is.from)
	}
	return held
}

func (v *escapedView) take(b byte, at int64) {
	if c := ordinary[b]; c != 0 && v.n == 0 && v.slash == never && v.seen == nil {
		v.character(c, span{at, at + 1})
		return
	}
	v.read(b, span{at, at + 1})
}

// ordinary maps the characters that belong to no escape to their normal form.
var ordinary = func() (table [256]byte) {
	for i := range table {
		if b := byte(i); b != 0 && b != '\\' && b != '\r' && b != '%' {
			table[i] = normal(b)
		}
	}
	return table
}()

// normal returns a character's normal form.
func normal(c byte) byte {
	switch {
	case c >= 'A' && c <= 'Z':
		return c + 'a' - 'A'
	case c == '\n':
		return 'n'
	case c == '\t':
		return 't'
	case c == '\b':
		return 'b'
	case c == '\f':
		return 'f'
	case c == '\v':
		return 'v'
	case c == '+':
		return ' '
	}
	return c
}

// read processes a character of the stream, or of a decoded escape.
func (v *escapedView) read(c byte, is span) {
	if v.n > 0 {
		if isHex(c) {
			v.open[v.n] = escapeChar{c, is}
			if v.n++; v.n > v.digits {
				v.closeEscape(is.to)
			}
			return
		}
		v.giveUp()
	}
	escaped := v.slash != never
	switch {
	case c == '\\':
		v.slash = min(v.slash, is.from)
		v.drop()
		return
	case c == 0, c == '\r':
		v.drop()
		return
	}
	is.from = min(is.from, v.slash)
	switch {
	case c == '%':
		v.openEscape(c, is, 2)
	case escaped && (c == 'u' || c == 'U'): // in capitals if a program converted the whole text
		v.openEscape(c, is, 4)
	case escaped && (c == 'x' || c == 'X'):
		v.openEscape(c, is, 2)
	default:
		v.text(c, is)
	}
}

// drop skips a character without meaning.
func (v *escapedView) drop() {
	if v.skip(maxGap); v.gap == 0 {
		v.slash = never
	}
}

func (v *escapedView) openEscape(c byte, is span, digits int) {
	v.open[0], v.n, v.digits, v.slash = escapeChar{c, is}, 1, digits, never
}

// giveUp processes characters that looked like an escape but are none.
func (v *escapedView) giveUp() {
	n := v.n
	v.n = 0
	for _, e := range v.open[:n] {
		v.text(e.c, e.is)
	}
}

// closeEscape processes the character of a complete escape; that may be part of another escape.
func (v *escapedView) closeEscape(to int64) {
	var value rune
	for _, e := range v.open[1:v.n] {
		value = value<<4 | rune(hexValue(e.c))
	}
	is, percent := span{v.open[0].is.from, to}, v.open[0].c == '%'
	v.n = 0
	switch {
	case percent && value >= utf8.RuneSelf:
		v.text(byte(value), is)
		return
	case value < utf8.RuneSelf:
		v.read(byte(value), is)
		return
	case value >= 0xd800 && value < 0xdc00:
		v.high = value
		return
	case value >= 0xdc00 && value < 0xe000 && v.high != 0:
		value = (v.high-0xd800)<<10 | (value - 0xdc00) + 0x10000
	}
	v.high = 0
	for _, b := range utf8.AppendRune(nil, value) {
		v.text(b, is)
	}
}

// text processes a character outside of escapes.
func (v *escapedView) text(c byte, is span) {
	v.slash = never
	c = normal(c)
	if v.seen != nil {
		*v.seen = append(*v.seen, c)
	}
	v.character(c, is)
}

// canonical returns a text as escapedView reads it.
func canonical(s string) string {
	var out []byte
	v := escapedView{search: search{m: newAutomaton()}, slash: never, seen: &out}
	for i := range len(s) {
		v.take(s[i], int64(i))
	}
	v.giveUp()
	return string(out)
}

// unescaped returns a text as escapedView reads it if each character is escaped: apparent escapes in it are then
// ordinary text.
func unescaped(s string) string {
	var out []byte
	for _, b := range []byte(s) {
		if b != 0 && b != '\r' && b != '\\' {
			out = append(out, normal(b))
		}
	}
	return string(out)
}

// hexView reads hexadecimal digits: in either case, with or without gaps between bytes, with 0x, \x or % before them,
// over any number of lines.
type hexView struct {
	search
	zero int64 // where a 0 was that may belong to 0x, or never
}

func (v *hexView) held() int64 {
	if v.zero != never && (v.state != 0 || v.m.root['0'] != 0) {
		return min(v.search.held(), v.zero)
	}
	return v.search.held()
}

// flush processes a 0 that did not belong to 0x.
func (v *hexView) flush() {
	if v.zero != never {
		v.character('0', span{v.zero, v.zero + 1})
		v.zero = never
	}
}

func (v *hexView) take(b byte, at int64) {
	if v.run == 0 && v.zero == never && !isHex(b) {
		return
	}
	if b == 'x' || b == 'X' {
		v.zero = never
	}
	v.flush()
	switch {
	case b == '0':
		v.zero = at
	case isHex(b):
		v.character(b|0x20, span{at, at + 1}) // a digit has this bit
	case b == '\n' || b == '\r':
		if v.inside() {
			v.skip(maxGap)
		} else {
			v.reset()
		}
	case v.run > 0 && separatesBytes(b):
		v.skip(maxGap)
	default:
		v.reset()
	}
}

func separatesBytes(b byte) bool {
	switch b {
	case ' ', '\t', ',', ':', '-', '.', '\\', 'x', 'X', '%', '"', '\'':
		return true
	}
	return false
}

// base64View reads base64 and base64url, over lines of any width.
type base64View struct {
	search
	last   byte
	quoted bool // there was a quote in this gap
}

func (v *base64View) take(b byte, at int64) {
	last := v.last
	v.last = b
	inGap := v.gap > 0
	if isAlnum(b) && v.gap == 0 {
		v.character(b, span{at, at + 1})
		return
	}
	switch {
	case last == '\\' && (b == 'n' || b == 'r') && inGap: // a line's end in JSON
		v.skip(maxGap)
	case b == '+' && inGap && v.quoted && last == ' ': // 'abcd' +
		v.skip(maxGap)
	case isAlnum(b) || b == '+' || b == '/' || b == '-' || b == '_':
		switch b {
		case '-':
			b = '+'
		case '_':
			b = '/'
		}
		v.quoted = false
		v.character(b, span{at, at + 1})
	case b == '\n' || b == '\r' || b == '\\' || b == '\'' || b == '"':
		if !inGap && !v.inside() {
			v.reset()
			return
		}
		v.quoted = v.quoted || b == '\'' || b == '"'
		v.skip(maxGap)
	case inGap && (b == ' ' || b == '\t' || b == ','):
		v.skip(maxGap)
	default:
		v.reset()
	}
}

// decimalView reads the numbers of a list, with commas or blanks between them, over any number of lines. After a
// comma, each number may have its index in quotes before it: JSON encodes a Uint8Array that way.
type decimalView struct {
	search
	gapFrom int64 // where this gap began
	comma   bool  // the gap contains a comma
	numbers int   // numbers before the gap
	place   byte  // 0, or the progress of an index in this gap: its quote, then ':' when the colon is due
}

func (v *decimalView) take(b byte, at int64) {
	if v.run == 0 && (b < '0' || b > '9') {
		return
	}
	inGap := v.gap > 0
	switch {
	case v.place == ':' && b == ':':
		v.place = 0
	case v.place != 0 && v.place == b:
		v.place = ':'
	case v.place != 0 && v.place != ':' && b >= '0' && b <= '9':
	case v.place != 0:
		v.over()
		return
	case (b == '"' || b == '\'') && inGap && v.comma:
		v.place, v.comma = b, false // one index for a number
	case b >= '0' && b <= '9':
		if inGap {
			v.numbers++
			v.character(',', span{v.gapFrom, at})
		}
		v.character(b, span{at, at + 1})
		return
	case b == ',' || b == ' ' || b == '\t':
	case (b == '\n' || b == '\r') && (inGap && v.comma || v.numbers >= 4): // otherwise a line of text ends in a number
	default:
		v.over()
		return
	}
	if !inGap {
		v.gapFrom, v.comma = at, false
	}
	v.comma = v.comma || b == ','
	if v.skip(maxGap); v.run == 0 {
		v.over()
	}
}

// over ends a list.
func (v *decimalView) over() {
	v.reset()
	v.numbers, v.place = 0, 0
}

func isHex(b byte) bool { return classes[b]&hexDigit != 0 }

func isAlnum(b byte) bool { return classes[b]&alnum != 0 }

const (
	hexDigit = 1 << iota
	alnum
)

var classes = func() (table [256]byte) {
	for _, c := range "0123456789abcdefABCDEF" {
		table[c] |= hexDigit
	}
	for _, c := range "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		table[c] |= alnum
	}
	return table
}()

func hexValue(b byte) byte {
	if b <= '9' {
		return b - '0'
	}
	return b&0xf + 9
}
