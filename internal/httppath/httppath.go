// Package httppath holds what policies and the network must agree on about the paths of HTTP requests. Plain returns
// the one reading of a path that all servers share, Check checks a pattern, and Match matches the two. The package has
// no side effects.
package httppath

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// anyBelow is the segment of a pattern that matches any number of segments.
const anyBelow = "**"

var (
	errForm     = errors.New("does not begin with a slash")
	errEncoding = errors.New("has a malformed percent-encoding")
	errHidden   = errors.New(
		"encodes a slash, a dot, a percent sign or a control character, which servers read in different ways")
	errDots   = errors.New("has a segment . or .. or an empty one, which servers read in different ways")
	errParams = errors.New("has a semicolon or a backslash, which servers read in different ways")
	errText   = errors.New("is not UTF-8")
)

// Max limits a path that is compared with rules, and a pattern. Servers refuse longer paths.
const Max = 8 << 10

// Plain returns a path after one decode. It refuses a path that two servers could read differently, and does not repair
// it: the server behind unitask may read it either way.
func Plain(raw string) (string, error) {
	if len(raw) > Max {
		return "", fmt.Errorf("is longer than %d bytes", Max)
	}
	if !strings.HasPrefix(raw, "/") {
		return "", errForm
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case c == ';' || c == '\\':
			return "", errParams
		case c <= ' ' || c == 0x7f || c == '?' || c == '#':
			return "", errHidden
		case c == '%':
			if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
				return "", errEncoding
			}
			c = unhex(raw[i+1])<<4 | unhex(raw[i+2])
			i += 2
			if c < ' ' || c == 0x7f || strings.IndexByte(`/\.%;`, c) >= 0 {
				return "", errHidden
			}
		}
		out = append(out, c)
	}
	if !utf8.Valid(out) {
		return "", errText
	}
	segments := strings.Split(string(out), "/")[1:]
	for i, s := range segments {
		if s == "." || s == ".." || s == "" && i < len(segments)-1 {
			return "", errDots
		}
	}
	return string(out), nil
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' }

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// Check returns why a pattern is invalid. A * stands for any text within one segment; a last segment ** stands for any
// number of segments. /repos/acme/* matches /repos/acme/x, but not /repos/acme/x/y. /repos/acme/** matches both, and
// /repos/acme. "" matches every path.
func Check(pattern string) error {
	if pattern == "" {
		return nil
	}
	if _, err := Plain(pattern); err != nil {
		return fmt.Errorf("%w: use a plain one like /repos/*", err)
	}
	if strings.Contains(pattern, "%") {
		return errors.New("has a percent-encoding: write it as it reads, like /repos/*")
	}
	if before, _ := strings.CutSuffix(pattern, "/"+anyBelow); strings.Contains(before, anyBelow) {
		return errors.New("has a ** that is not its last segment")
	}
	return nil
}

// Match reports whether a path from Plain matches a pattern.
func Match(pattern, plain string) bool {
	if pattern == "" {
		return true
	}
	segments, path := strings.Split(pattern, "/"), strings.Split(plain, "/")
	for i, p := range segments {
		if p == anyBelow && i == len(segments)-1 {
			return true
		}
		if i >= len(path) || !matchText(p, path[i]) {
			return false
		}
	}
	return len(segments) == len(path)
}

// Near is Match as the most careless server would do it. It ignores case, blanks and dots at a segment's end, and a
// slash at the path's end. It is for rules that forbid.
func Near(pattern, plain string) bool {
	return Match(pattern, plain) || Match(folded(pattern), folded(plain))
}

func folded(path string) string {
	segments := strings.Split(strings.ToLower(strings.ToUpper(path)),
		"/") // ToUpper first: letters such as ſ change only that way
	for i, s := range segments {
		segments[i] = strings.TrimRight(s, " .")
	}
	if last := len(segments) - 1; last > 1 && segments[last] == "" {
		segments = segments[:last]
	}
	return strings.Join(segments, "/")
}

// matchText matches one segment, * for any text.
func matchText(pattern, text string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	for _, p := range parts[:len(parts)-1] {
		i := strings.Index(text, p)
		if i < 0 {
			return false
		}
		text = text[i+len(p):]
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}

// Covers reports whether one pattern matches every path that another one matches. It may return false if that is so,
// but never true if it is not.
func Covers(wide, narrow string) bool {
	if wide == "" || wide == narrow {
		return true
	}
	if narrow == "" {
		narrow = "/" + anyBelow
	}
	if wide == "/"+anyBelow {
		return true
	}
	w, n := strings.Split(wide, "/"), strings.Split(narrow, "/")
	for i, p := range w {
		switch {
		case p == anyBelow && i == len(w)-1:
			return true
		case i >= len(n) || n[i] == anyBelow && i == len(n)-1:
			return false
		case !coversText(p, n[i]):
			return false
		}
	}
	return len(w) == len(n)
}

// coversText is Covers for one segment. It replaces a star of the narrow pattern by a text that no path can have, which
// only a star can match.
func coversText(wide, narrow string) bool {
	return matchText(wide, strings.ReplaceAll(narrow, "*", "\x00"))
}
