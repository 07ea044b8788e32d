package record

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// minPart is the minimum length of a part that also counts as a secret: shorter parts ("true", "}") are
// everywhere.
const minPart = 8

// parts returns a secret and those of its parts that are also secret. These are the text without surrounding blanks,
// its lines, and the strings in it if it is JSON. A URL's password and the contents of PEM are parts, too.
func parts(secret string) (list []string) {
	known := map[string]bool{}
	add := func(s string, least int) {
		if len(s) >= least && !known[s] {
			known[s] = true
			list = append(list, s)
		}
	}
	add(secret, 1)
	var split func(s string)
	var leaves func(v any)
	split = func(s string) {
		add(strings.TrimSpace(s), MinSecret)
		if strings.Contains(s, "\n") {
			for line := range strings.Lines(s) {
				line = strings.TrimSpace(line)
				if !strings.HasPrefix(line, "-----") { // -----BEGIN PRIVATE KEY----- is not a secret
					add(line, minPart)
				}
			}
		}
		for rest := []byte(s); ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			add(string(block.Bytes), minPart)
		}
		if u, err := url.Parse(s); err == nil && u.User != nil {
			password, _ := u.User.Password()
			add(password, MinSecret)
		}
		var v any
		if s := strings.TrimPrefix(s, "\ufeff"); strings.ContainsAny(s, "{[\"") && json.Unmarshal([]byte(s), &v) == nil {
			leaves(v)
		}
	}
	leaves = func(v any) {
		switch v := v.(type) {
		case string:
			if len(v) >= minPart && !known[v] {
				add(v, minPart)
				split(v)
			}
		case []any:
			for _, e := range v {
				leaves(e)
			}
		case map[string]any:
			for _, e := range v {
				leaves(e)
			}
		}
	}
	split(secret)
	return list
}

// minCanonical is the minimum length of a secret without its backslashes.
const minCanonical = MinSecret - 2

// Programs print only the beginning of a long binary value: shownBytes of a Buffer, shownNumbers of a Uint8Array
// (Node's INSPECT_MAX_BYTES, util.inspect's maxArrayLength).
const (
	shownBytes   = 50
	shownNumbers = 100
)

// insert adds a secret to each view's automaton, in the view's form; with cut, it adds the beginnings that programs
// print, too.
func (r *automata) insert(secret string, cut bool) {
	both := func(m *automaton, s string, least int) {
		if len(s) >= least {
			m.insert(s)
			m.insert(reversed(s))
		}
	}
	both(r.plain, secret, 1)
	r.plain.insert(reversedRunes(secret))
	for _, s := range []string{url.QueryEscape(secret), url.PathEscape(secret), quoted(secret)} {
		if s != secret { // reversed, and where little is left of it, the view of escapes can't read it
			both(r.plain, s, MinSecret)
		}
	}
	if utf8.ValidString(secret) { // ASCII is found without this: the view drops NUL bytes
		var little, big []byte
		for _, u := range utf16.Encode([]rune(secret)) {
			little, big = append(little, byte(u), byte(u>>8)), append(big, byte(u>>8), byte(u))
		}
		for _, b := range [][]byte{little, big} {
			if s := string(bytes.ReplaceAll(b, []byte{0}, nil)); len(s) >= MinSecret {
				r.plain.insert(s)
			}
		}
	}
	both(r.escaped, canonical(secret), minCanonical)
	both(r.escaped, unescaped(secret), minCanonical)

	digits := hex.EncodeToString([]byte(secret))
	both(r.hex, digits, 2*MinSecret)
	if cut && len(secret) > shownBytes {
		r.hex.insert(digits[:2*shownBytes])
	}
	if only(secret, "0123456789abcdefABCDEF") && len(secret) >= 2*MinSecret { // printed as the bytes that it encodes
		both(r.hex, strings.ToLower(secret), 2*MinSecret)
	}

	for shift := range 3 {
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), secret...))
		bits := 8 * (shift + len(secret))
		from := (8*shift + 5) / 6
		both(r.base64, text[from:bits/6], MinSecret) // the characters that depend only on the secret
		if len(text)-from >= MinSecret {
			r.base64.insert(text[from:]) // at the text's end, the last character does, too
		}
	}

	var numbers []string
	for _, b := range []byte(secret) {
		numbers = append(numbers, strconv.Itoa(int(b)))
	}
	both(r.decimal, strings.Join(numbers, ","), 2*MinSecret)
	if cut && len(numbers) > shownNumbers {
		r.decimal.insert(strings.Join(numbers[:shownNumbers], ","))
	}
}

// only reports whether a text consists only of the given characters.
func only(s, characters string) bool { return strings.Trim(s, characters) == "" }

func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

func reversedRunes(s string) string {
	r := []rune(s)
	slices.Reverse(r)
	return string(r)
}

// quoted returns a text as a JSON string, without the quotes around it.
func quoted(s string) string {
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if enc.Encode(s) != nil {
		return s
	}
	text := strings.TrimSuffix(out.String(), "\n")
	return text[1 : len(text)-1]
}
