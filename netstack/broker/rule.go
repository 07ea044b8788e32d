package broker

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/httppath"
)

// Rule allows or denies methods and paths of requests to one host.
type Rule struct {
	// Name identifies the rule in refusals and the log.
	Name string
	// Set is the number of the rule's list: each list must allow a request.
	Set int
	// Remedy explains in a refusal how to ask for more; REQUEST in it is replaced with the request's method, host
	// and path.
	Remedy string
	Host   Host
	// Methods are the methods that the rule matches, in upper case; none means all.
	Methods []string
	// Path is a pattern (package httppath); "" matches every path.
	Path string
	// Deny forbids what the rule matches; it takes precedence over rules that allow.
	Deny bool
	// Audit permits what the rule would refuse, and logs it. An allowing rule with Audit forbids nothing else.
	Audit bool
}

// Host is a name in normal form (lower case, ASCII, no trailing dot), or "*." and a name: that matches every name
// below it, at any depth, but not the name itself.
type Host string

// covers reports whether the host matches a name in normal form.
func (h Host) covers(name string) bool {
	if rest, ok := strings.CutPrefix(string(h), "*"); ok {
		return len(name) > len(rest) && strings.HasSuffix(name, rest)
	}
	return string(h) == name
}

// domain returns the name without its wildcard.
func (h Host) domain() string { return strings.TrimPrefix(string(h), "*.") }

func (h Host) check() error {
	d := h.domain()
	if d == "" || strings.Trim(d, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.HasPrefix(d, ".") ||
		strings.HasSuffix(d, ".") || strings.Contains(d, "..") {
		return fmt.Errorf("host %q: not a host name in lower case", string(h))
	}
	if last := d[strings.LastIndexByte(d, '.')+1:]; strings.Trim(last, "0123456789") == "" ||
		strings.HasPrefix(last, "0x") {
		return fmt.Errorf("host %q: an address gets no rule and no secret", string(h))
	}
	return nil
}

func (r *Rule) check() error {
	if err := r.Host.check(); err != nil {
		return err
	}
	for _, m := range r.Methods {
		if m == "" || m != strings.ToUpper(m) || strings.ContainsAny(m, " \t/:") {
			return fmt.Errorf("rule %q: method %q: use one like GET", r.Name, m)
		}
	}
	if err := httppath.Check(r.Path); err != nil {
		return fmt.Errorf("rule %q: path %q: %w", r.Name, r.Path, err)
	}
	return nil
}

// enforces reports whether the rule can refuse requests to a host.
func (r *Rule) enforces(host string) bool { return !r.Audit && r.Host.covers(host) }

// decision is the rules' decision on one request.
type decision struct {
	allowed bool
	rule    string // the deciding rule; "" if none
	reason  string // why it is not allowed, or would not be without audit mode
	remedy  string // what would allow it
	audit   bool   // allowed only because the rule just audits
}

// decide checks a request against the rules. path is as in the request. A host without rules allows any request.
func decide(rules []Rule, host, method, path string) decision {
	var about []*Rule
	var sets []int
	enforced := false
	for i := range rules {
		if r := &rules[i]; r.Host.covers(host) {
			about, enforced = append(about, r), enforced || !r.Audit
			if !slices.Contains(sets, r.Set) {
				sets = append(sets, r.Set)
			}
		}
	}
	if len(about) == 0 {
		return decision{allowed: true}
	}
	plain, err := httppath.Plain(path)
	if err != nil {
		return decision{allowed: !enforced, audit: !enforced, reason: fmt.Sprintf("the path %v", err),
			remedy: "write it in the plain form"}
	}
	all := decision{allowed: true}
	for _, set := range sets {
		d := decideSet(about, set, method, plain)
		switch {
		case !d.allowed:
			return d
		case d.audit && !all.audit || all.rule == "":
			all = d
		}
	}
	return all
}

// decideSet checks a request against the rules of one set that match its host.
func decideSet(about []*Rule, set int, method, plain string) decision {
	var audited *Rule // would have denied it
	var allowed *Rule
	var allowing, enforced []*Rule
	for _, r := range about {
		if r.Set != set {
			continue
		}
		matches := r.matches(method, plain)
		switch {
		case r.Deny && matches && !r.Audit:
			return decision{rule: r.Name, reason: DeniedByRule, remedy: r.Remedy}
		case r.Deny && matches:
			audited = cmp.Or(audited, r)
		}
		if r.Deny {
			continue
		}
		allowing = append(allowing, r)
		if matches {
			allowed = cmp.Or(allowed, r)
		}
		if !r.Audit {
			enforced = append(enforced, r)
		}
	}
	switch {
	case allowed == nil && len(enforced) > 0:
		return decision{rule: names(enforced), reason: AllowedByNone, remedy: enforced[0].Remedy}
	case audited != nil:
		return decision{allowed: true, audit: true, rule: audited.Name, reason: DeniedByRule}
	case allowed != nil:
		return decision{allowed: true, rule: allowed.Name}
	case len(allowing) > 0:
		return decision{allowed: true, audit: true, rule: names(allowing), reason: AllowedByNone}
	}
	return decision{allowed: true}
}

// maxNamed bounds the rules that a refusal names.
const maxNamed = 3

// names returns the names of the first rules.
func names(rules []*Rule) string {
	var list []string
	for _, r := range rules[:min(len(rules), maxNamed)] {
		list = append(list, r.Name)
	}
	if more := len(rules) - maxNamed; more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	return strings.Join(list, "; ")
}

// theRequest is replaced in a remedy with the refused request.
const theRequest = "REQUEST"

// Reasons why a request that was read is not allowed. They quote nothing from the guest.
const (
	DeniedByRule  = "the rule denies it"
	AllowedByNone = "no rule allows this method and path"
)

func (r *Rule) matches(method, plain string) bool {
	if len(r.Methods) > 0 {
		found := false
		for _, m := range r.Methods {
			// GET also allows HEAD.
			found = found || m == method || m == http.MethodGet && method == http.MethodHead
		}
		if !found {
			return false
		}
	}
	if r.Deny {
		return httppath.Near(r.Path, plain)
	}
	return httppath.Match(r.Path, plain)
}

// Decide reports whether rules allow a request, and the reason if they do not. path is as in the request.
func Decide(rules []Rule, host, method, path string) (allowed bool, reason string) {
	d := decide(rules, host, method, path)
	return d.allowed, d.reason
}
