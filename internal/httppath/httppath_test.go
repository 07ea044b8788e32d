package httppath

import (
	"net/url"
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"", "/any/thing", true}, {"/", "/", true}, {"/", "/x", false}, {"/a", "/a", true}, {"/a", "/a/", false},
		{"/a", "/A", false}, {"/a/", "/a/", true},
		{"/*", "/x", true}, {"/*", "/", true}, {"/*", "/x/y", false}, {"/a/*/c", "/a/b/c", true},
		{"/a/*/c", "/a/b/b/c", false},
		{"/a/**", "/a", true}, {"/a/**", "/a/", true}, {"/a/**", "/a/b/c", true}, {"/a/**", "/ab", false}, {"/**", "/", true},
		{"/v*.json", "/v1.json", true}, {"/v*.json", "/v.json", true}, {"/v*.json", "/v1.jsonx", false},
		{"/*a*b", "/xaxbxab", true}, {"/*a*b", "/xaxbx", false}, {"/ab*ba", "/aba", false},
	} {
		if err := Check(c.pattern); err != nil {
			t.Errorf("%s: %v", c.pattern, err)
		}
		if got := Match(c.pattern, c.path); got != c.want {
			t.Errorf("%s and %s: %v", c.pattern, c.path, got)
		}
	}
	for _, bad := range []string{"a", "/a/../b", "/a//b", "/./", "/a%20b", "/**/a", "/a**", "/a;b", `/a\b`, "/a?b", "/a#b",
		"/a b", "/\x00", "/\xff", "/" + strings.Repeat("a", Max)} {
		if Check(bad) == nil {
			t.Errorf("%.20q is a pattern", bad)
		}
	}
}

func TestNear(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"/admin/**", "/ADMIN/x", true}, {"/admin/**", "/admin./x", true}, {"/Admin", "/admin/", true},
		{"/admin/", "/admin", true}, {"/admin", "/admin. .", true}, {"/admin", "/\u212admin", false},
		{"/ok", "/o\u212a", true}, {"/a.b", "/a.b", true}, {"/admin/**", "/admins", false}, {"/", "/", true},
		{"/", "/x", false}, {"/*.php", "/x.PHP", true}, {"", "/x", true}, {"/a", "/a/...", true},
		{"/admin", "/adm\u0131n", true}, {"/sales", "/\u017fales", true}, {"/admin", "/adm\u00een", false},
	} {
		if got := Near(c.pattern, c.path); got != c.want {
			t.Errorf("%q and %q: %v", c.pattern, c.path, got)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		wide, narrow string
		want         bool
	}{
		{"", "/a", true}, {"/**", "", true}, {"", "", true}, {"/a", "", false}, {"/*", "", false}, {"/*", "/**", false},
		{"/a/**", "/a/**", true}, {"/a/**", "/a/b/**", true}, {"/a/**", "/a", true},
		{"/a/b/**", "/a/**", false}, {"/a/*", "/a/b", true}, {"/a/*", "/a/b*c", true}, {"/a/b*", "/a/bc*", true},
		{"/a/*c", "/a/b*c", true}, {"/a/b*", "/a/*", false}, {"/a/*", "/a/**", false},
		{"/a/*/c", "/a/b/c", true}, {"/a/*/c", "/a/b/*", false}, {"/a", "/a/", false}, {"/a*b", "/a*b", true},
		{"/a*b", "/ab*b", true}, {"/ab*", "/a*b", false}, {"/*a*", "/*", false}, {"/*/**", "/a/**", true},
		{"/*/**", "/**", false},
	} {
		if got := Covers(c.wide, c.narrow); got != c.want {
			t.Errorf("%q covers %q: %v", c.wide, c.narrow, got)
		}
	}
}

// A plain path is what net/url makes of it, and a second pass changes only the encoding.
func FuzzPlain(f *testing.F) {
	for _, s := range []string{"/", "/a/b", "/a%20b", "/%C3%A9", "/a/../b", "/%2e", "/%25"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		plain, err := Plain(raw)
		if err != nil {
			return
		}
		if theirs, err := url.PathUnescape(raw); err != nil || theirs != plain {
			t.Errorf("%q: %q, and %q to net/url (%v)", raw, plain, theirs, err)
		}
		if strings.Contains(plain, "//") || strings.Contains(plain+"/", "/../") || strings.Contains(plain+"/", "/./") ||
			strings.ContainsAny(plain, "\\%;\x00\r\n") {
			t.Errorf("%q became %q", raw, plain)
		}
	})
}

// For any patterns: Match agrees with a plain recursive matcher, and a pattern that covers another one matches
// everything that the other matches.
func FuzzMatch(f *testing.F) {
	for _, s := range [][3]string{{"/a/**", "/a/b*/c", "/a/bb/c"}, {"", "/*", "/x"}, {"/*a*b", "/xa*b", "/xaab"},
		{"/**", "/a/*", "/a/"}, {"/a*a", "/aa", "/a"}, {"/*a/**", "/*b*a", "/bxa"}} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, wide, narrow, path string) {
		if len(wide) > 40 || len(narrow) > 40 || len(path) > 60 || Check(wide) != nil || Check(narrow) != nil {
			return
		}
		plain, err := Plain(path)
		if err != nil {
			return
		}
		matches := map[string]bool{}
		for _, pattern := range []string{wide, narrow} {
			matches[pattern] = Match(pattern, plain)
			if want := slowly(pattern, plain); matches[pattern] != want {
				t.Errorf("%q and %q: %v", pattern, plain, matches[pattern])
			}
		}
		if matches[wide] && !Near(wide, plain) {
			t.Errorf("%q matches %q, and is not near it", wide, plain)
		}
		if Covers(wide, narrow) && matches[narrow] && !matches[wide] {
			t.Errorf("%q covers %q, and does not match %q", wide, narrow, plain)
		}
	})
}

// slowly is Match, character by character.
func slowly(pattern, plain string) bool {
	if pattern == "" {
		return true
	}
	if below, ok := strings.CutSuffix(pattern, "/"+anyBelow); ok {
		for end := 0; end <= len(plain); end++ {
			if (end == len(plain) || plain[end] == '/') && each(below, plain[:end]) {
				return true
			}
		}
		return false
	}
	return each(pattern, plain)
}

func each(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return each(pattern[1:], text) || text != "" && text[0] != '/' && each(pattern, text[1:])
	}
	return text != "" && text[0] == pattern[0] && each(pattern[1:], text[1:])
}
