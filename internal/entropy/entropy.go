// Package entropy estimates how hard a secret is to guess. Filters ask it before they look for a secret in text that
// hostile code may have chosen. Such a filter's reaction to a right guess would confirm the guess. The package sees
// only the secret, and keeps nothing. Packages broker and record call it.
package entropy

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Least is the number of bits that a secret needs before a filter looks for it. With a million guesses a second for a
// day, hostile code finds a secret of 60 bits with a chance of one in ten million.
const Least = 60

// Bits estimates the entropy of a secret for a guesser who knows its form. In a URL only the password counts, or
// without one the longest part of its path and query. In JSON and in lists of names and values only the longest value
// counts, and in NAME:PASSWORD the password. In base64 or hexadecimal of a text only the text counts. If names mark
// some values as secret, only those values count. A text of few different characters counts for less. The estimate
// knows no words, so it overestimates a sentence.
func Bits(secret string) float64 { return inside(secret, maxDepth) }

// Guessable reports whether a secret has too few bits to be looked for.
func Guessable(secret string) bool { return Bits(secret) < Least }

// maxDepth limits the nesting of texts in texts.
const maxDepth = 8

// schemes are the schemes of HTTP's Authorization header, in lower case. They are not secret.
var schemes = []string{"basic ", "bearer ", "token "}

// inside returns the bits of the values inside a structured text.
func inside(text string, depth int) float64 {
	text = strings.TrimSpace(text)
	if depth--; depth < 0 {
		return bits(text)
	}
	for _, scheme := range schemes {
		if len(text) > len(scheme) && strings.EqualFold(text[:len(scheme)], scheme) {
			return inside(text[len(scheme):], depth)
		}
	}
	if password, ok := passwordOf(text); ok {
		return bits(password)
	}
	if parts := partsOf(text); parts != nil {
		return most(parts, depth)
	}
	var v any
	if json.Unmarshal([]byte(text), &v) == nil {
		return most(v, depth)
	}
	if values := valuesOf(text); values != nil {
		return most(values, depth)
	}
	if plain, ok := decoded(text); ok {
		return min(bits(text), inside(plain, depth))
	}
	if m := login.FindStringSubmatch(text); m != nil && !random(m[1]) {
		return min(bits(text), inside(m[2], depth))
	}
	return bits(text)
}

// login matches a name and a password: as in Basic, or followed by a place, as database drivers take it.
var login = regexp.MustCompile(
	`^([A-Za-z_][A-Za-z0-9_. -]{0,60}):\s*(\S.*?)(?:@(?:[a-z0-9]+\(.*\)|[A-Za-z0-9.-]+:[0-9]+)(?:/\S*)?)?$`)

// random reports whether a possible name looks like part of a random value.
func random(name string) bool {
	return bits(name) >= Least && strings.ContainsFunc(name, unicode.IsDigit) &&
		strings.ContainsFunc(name, unicode.IsUpper) && strings.ContainsFunc(name, unicode.IsLower)
}

// partsOf returns the parts of a URL's path and query; nil if the text is not a URL.
func partsOf(text string) (parts []any) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Host == "" {
		return nil
	}
	parts = []any{u.Fragment}
	for part := range strings.SplitSeq(u.Path, "/") {
		parts = append(parts, part)
	}
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		_, value, _ := strings.Cut(part, "=")
		parts = append(parts, value)
	}
	return parts
}

// passwordOf returns a URL's password, even if it has characters that should have been escaped.
func passwordOf(text string) (string, bool) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || strings.ContainsFunc(scheme, func(c rune) bool { return c == ' ' || c == '{' || c == '"' }) {
		return "", false
	}
	authority, _, _ := strings.Cut(rest, "/")
	if !strings.Contains(authority, "@") {
		authority = rest
	}
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		return "", false
	}
	_, password, _ := strings.Cut(authority[:at], ":")
	return password, true
}

// pair matches a name and a value of a list: a cookie, a form, the connection string of a database.
var pair = regexp.MustCompile(`^\s*([A-Za-z_][A-Za-z0-9_. -]{0,60})=(.*)$`)

// valuesOf returns the values of a list of names and values; nil if the text is not such a list.
func valuesOf(text string) map[string]any {
	if m := pair.FindStringSubmatch(text); m != nil && !strings.ContainsAny(m[2], "; &\n") &&
		strings.Trim(m[2], "=") != "" && !random(m[1]) {
		return map[string]any{m[1]: m[2]}
	}
	for _, between := range []string{";", "&", " ", "\n"} {
		values := map[string]any{}
		pieces := strings.Split(strings.Trim(text, between), between)
		for _, piece := range pieces {
			if m := pair.FindStringSubmatch(piece); m != nil {
				values[m[1]+fmt.Sprint(len(values))] = m[2] // a name may occur twice
			}
		}
		if len(values) > 1 && len(values) == len(pieces) {
			return values
		}
	}
	return nil
}

func isText(plain []byte) bool {
	return len(plain) > 0 && utf8.Valid(plain) && !bytes.ContainsFunc(plain,
		func(c rune) bool { return !unicode.IsPrint(c) && !unicode.IsSpace(c) })
}

// decoded returns the text that another text encodes in base64 or hexadecimal.
func decoded(text string) (string, bool) {
	if plain, err := hex.DecodeString(text); err == nil && isText(plain) {
		return string(plain), true
	}
	text = strings.TrimRight(text, "=")
	for _, code := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		plain, err := code.DecodeString(text)
		if err == nil && isText(plain) {
			return string(plain), true
		}
	}
	return "", false
}

// secretName matches a name that marks its value as secret.
var secretName = regexp.MustCompile(`(?i)pass|pwd|\bpin\b|\bpin[0-9]*$|secret|token|key|credential|signature`)

// most returns the bits of the JSON value that has the most.
func most(v any, depth int) (all float64) {
	switch v := v.(type) {
	case string:
		return inside(v, depth)
	case float64:
		text, _ := json.Marshal(v)
		return bits(string(text))
	case []any:
		for _, e := range v {
			all = max(all, most(e, depth))
		}
	case map[string]any:
		alone := false
		for name := range v {
			alone = alone || secretName.MatchString(name)
		}
		for name, e := range v {
			_, text := e.(string)
			_, number := e.(float64)
			if !alone || secretName.MatchString(name) || !text && !number {
				all = max(all, most(e, depth))
			}
		}
	}
	return all
}

// classes are the alphabets of characters.
var classes = []struct {
	size float64
	has  func(c rune) bool
}{
	{10, func(c rune) bool { return '0' <= c && c <= '9' }},
	{6, func(c rune) bool { return 'a' <= c && c <= 'f' }},
	{20, func(c rune) bool { return 'g' <= c && c <= 'z' }},
	{6, func(c rune) bool { return 'A' <= c && c <= 'F' }},
	{20, func(c rune) bool { return 'G' <= c && c <= 'Z' }},
	{33, func(c rune) bool {
		return c < utf8.RuneSelf && !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z')
	}},
	{100, func(c rune) bool { return c >= utf8.RuneSelf }},
}

// bits counts for each character the size of the alphabets in the text, limited by the number of different characters.
func bits(text string) float64 {
	different, alphabet, length := map[rune]bool{}, 0.0, 0
	seen := make([]bool, len(classes))
	for _, c := range text {
		length++
		different[c] = true
		for i, class := range classes {
			if !seen[i] && class.has(c) {
				seen[i], alphabet = true, alphabet+class.size
			}
		}
	}
	if length == 0 {
		return 0
	}
	few := float64(len(different)) * float64(len(different))
	return float64(length) * math.Log2(min(alphabet, few))
}
