package broker

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"
)

// Rule is about requests to one host: which methods and paths they may have.
type Rule struct {
	// Name is how a refusal and the log call it.
	Name string
	Host Host
	// Methods are those that it is about, in upper case; none is all.
	Methods []string
	// Path is a pattern; "" is every path. A * stands for any text within one segment,
	// a last segment ** for any number of segments: /repos/acme/* is /repos/acme/x and
	// not /repos/acme/x/y, which /repos/acme/** is, as is /repos/acme itself.
	Path string
	// Deny forbids what the rule is about; it goes before the rules that allow.
	Deny bool
	// Audit lets through what the rule would refuse, and says so in the log. A rule
	// that allows, with Audit, makes nothing else forbidden.
	Audit bool
}

// Host is a name in normal form (lower case, ASCII, no trailing dot), or *. before one:
// every name below it, at any depth, and not itself.
type Host string

// covers says whether the name, in normal form, is the host's.
func (h Host) covers(name string) bool {
	if rest, ok := strings.CutPrefix(string(h), "*"); ok {
		return len(name) > len(rest) && strings.HasSuffix(name, rest)
	}
	return string(h) == name
}

// domain is the name without its wildcard.
func (h Host) domain() string { return strings.TrimPrefix(string(h), "*.") }

func (h Host) check() error {
	d := h.domain()
	if d == "" || strings.Trim(d, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.HasPrefix(d, ".") || strings.HasSuffix(d, ".") || strings.Contains(d, "..") {
		return fmt.Errorf("host %q: not a host name in lower case", string(h))
	}
	if last := d[strings.LastIndexByte(d, '.')+1:]; strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return fmt.Errorf("host %q: an address gets no rule and no secret", string(h))
	}
	return nil
}

// anyBelow is the segment of a pattern that stands for any number of them.
const anyBelow = "**"

func (r *Rule) check() error {
	if err := r.Host.check(); err != nil {
		return err
	}
	for _, m := range r.Methods {
		if m == "" || m != strings.ToUpper(m) || strings.ContainsAny(m, " \t/:") {
			return fmt.Errorf("rule %q: method %q: use one like GET", r.Name, m)
		}
	}
	if r.Path == "" {
		return nil
	}
	if _, err := plainPath(r.Path); err != nil || strings.Contains(r.Path, "%") {
		return fmt.Errorf("rule %q: path %q: use a plain one like /repos/*", r.Name, r.Path)
	}
	if before, _ := strings.CutSuffix(r.Path, "/"+anyBelow); strings.Contains(before, anyBelow) {
		return fmt.Errorf("rule %q: path %q: ** can only be its last segment", r.Name, r.Path)
	}
	return nil
}

// decision is what the rules say of one request.
type decision struct {
	allowed bool
	rule    string // that decided; "" is none
	reason  string // why it is not allowed, or would not be
	audit   bool   // it would not be, but for a rule that only audits
}

// decide holds a request against the rules. path is as it stands in the request. A host
// that no rule is about may be asked for anything.
func decide(rules []Rule, host, method, path string) decision {
	var about []*Rule
	for i := range rules {
		if rules[i].Host.covers(host) {
			about = append(about, &rules[i])
		}
	}
	if len(about) == 0 {
		return decision{allowed: true}
	}
	plain, err := plainPath(path)
	if err != nil {
		return decision{reason: fmt.Sprintf("the path %v", err)}
	}
	var audited *Rule // would have denied it
	var allowing, allowed, enforced *Rule
	for _, r := range about {
		matches := r.matches(method, plain)
		switch {
		case r.Deny && matches && !r.Audit:
			return decision{rule: r.Name, reason: deniedByRule}
		case r.Deny && matches:
			audited = cmp.Or(audited, r)
		}
		if r.Deny {
			continue
		}
		allowing = cmp.Or(allowing, r)
		if matches {
			allowed = cmp.Or(allowed, r)
		}
		if !r.Audit {
			enforced = cmp.Or(enforced, r)
		}
	}
	switch {
	case allowed == nil && enforced != nil:
		return decision{rule: enforced.Name, reason: allowedByNone}
	case audited != nil:
		return decision{allowed: true, audit: true, rule: audited.Name, reason: deniedByRule}
	case allowed != nil:
		return decision{allowed: true, rule: allowed.Name}
	case allowing != nil:
		return decision{allowed: true, audit: true, rule: allowing.Name, reason: allowedByNone}
	}
	return decision{allowed: true}
}

const (
	deniedByRule  = "the rule denies it"
	allowedByNone = "no rule allows this method and path"
)

func (r *Rule) matches(method, plain string) bool {
	if len(r.Methods) > 0 {
		found := false
		for _, m := range r.Methods {
			// What may be got may be asked for its head.
			found = found || m == method || m == http.MethodGet && method == http.MethodHead
		}
		if !found {
			return false
		}
	}
	return r.Path == "" || matchSegments(strings.Split(r.Path, "/"), strings.Split(plain, "/"))
}

func matchSegments(pattern, path []string) bool {
	for i, p := range pattern {
		if p == anyBelow && i == len(pattern)-1 {
			return true
		}
		if i >= len(path) || !matchText(p, path[i]) {
			return false
		}
	}
	return len(pattern) == len(path)
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

var (
	errPathForm     = errors.New("does not begin with a slash")
	errPathEncoding = errors.New("has a malformed percent-encoding")
	errPathHidden   = errors.New("encodes a slash, a dot, a percent sign or a control character, which servers read in different ways")
	errPathDots     = errors.New("has a segment . or .. or an empty one, which servers read in different ways")
	errPathParams   = errors.New("has a semicolon or a backslash, which servers read in different ways")
	errPathText     = errors.New("is not UTF-8")
)

// maxPath bounds a path that is held against rules; servers refuse longer ones.
const maxPath = 8 << 10

// plainPath is a path after one decode. What two servers could read differently is
// refused and not repaired: the one behind us may be either.
func plainPath(raw string) (string, error) {
	if len(raw) > maxPath {
		return "", fmt.Errorf("is longer than %d bytes", maxPath)
	}
	if !strings.HasPrefix(raw, "/") {
		return "", errPathForm
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case c == ';' || c == '\\':
			return "", errPathParams
		case c <= ' ' || c == 0x7f || c == '?' || c == '#':
			return "", errPathHidden
		case c == '%':
			if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
				return "", errPathEncoding
			}
			c = unhex(raw[i+1])<<4 | unhex(raw[i+2])
			i += 2
			if c < ' ' || c == 0x7f || strings.IndexByte(`/\.%;`, c) >= 0 {
				return "", errPathHidden
			}
		}
		out = append(out, c)
	}
	if !utf8.Valid(out) {
		return "", errPathText
	}
	segments := strings.Split(string(out), "/")[1:]
	for i, s := range segments {
		if s == "." || s == ".." || s == "" && i < len(segments)-1 {
			return "", errPathDots
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
