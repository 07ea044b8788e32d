package policy

import (
	"errors"
	"regexp"
	"strings"
)

// PackageRule is a package of a registry: pip:NAME or npm:NAME, with a condition on its version
// (pip:requests==2.32.3, npm:zod@4); in a ceiling also pip:* and npm:@SCOPE/*. A rule without a version covers
// every version.
type PackageRule string

// Registries of packages.
const (
	Pip = "pip"
	Npm = "npm"
)

const maxPackage = 200 // bytes of a package's name and version

var (
	pipForm = regexp.MustCompile(
		`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(\[[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*\])?` +
			`((?:(?:===?|~=|!=|<=|>=|<|>)[A-Za-z0-9.*+!_-]+,?)*)$`)
	pipSeparator = regexp.MustCompile(`[-_.]+`)
	npmForm      = regexp.MustCompile(
		`^((?:@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*)(?:@([A-Za-z0-9^~<>=][A-Za-z0-9.*+^~<>=-]*))?$`)
	npmScope = regexp.MustCompile(`^@[a-z0-9~-][a-z0-9._~-]*/\*$`)
)

// ParsePackage parses pip:NAME[EXTRA][==VERSION] (and pip's other comparisons) or npm:NAME[@VERSION] into one
// form, with names as the registry compares them. It refuses addresses, paths and git, which are not packages of
// a registry.
func ParsePackage(text string) (PackageRule, error) {
	system, spec, _ := strings.Cut(text, ":")
	if len(text) > maxPackage {
		return "", errors.New("is too long")
	}
	switch system {
	case Pip:
		spec = strings.ReplaceAll(spec, " ", "")
		if spec == "*" {
			return PackageRule(text), nil
		}
		m := pipForm.FindStringSubmatch(spec)
		if m == nil || strings.HasSuffix(spec, ",") {
			return "", errors.New("is no package of pip: pip:NAME, pip:NAME==VERSION, pip:NAME[EXTRA]>=1,<2")
		}
		return PackageRule("pip:" + strings.ToLower(pipSeparator.ReplaceAllString(m[1], "-")+m[2]) + m[3]), nil
	case Npm:
		if spec == "*" || npmScope.MatchString(spec) {
			return PackageRule(text), nil
		}
		if !npmForm.MatchString(spec) || strings.HasPrefix(spec, "-") {
			return "", errors.New("is no package of npm: npm:NAME, npm:@SCOPE/NAME, npm:NAME@VERSION")
		}
		return PackageRule(text), nil
	}
	return "", errors.New("begins with neither pip: nor npm:, as pip:requests and npm:zod do")
}

// System returns the registry's kind, pip or npm.
func (p PackageRule) System() string {
	system, _, _ := strings.Cut(string(p), ":")
	return system
}

// Spec returns the package in its own tool's form.
func (p PackageRule) Spec() string { return strings.TrimPrefix(string(p), p.System()+":") }

// Any reports whether the rule matches many packages.
func (p PackageRule) Any() bool {
	return strings.HasSuffix(string(p), ":*") || strings.HasSuffix(string(p), "/*")
}

// name returns its registry and name, without version and extras.
func (p PackageRule) name() string {
	if p.System() == Pip {
		if m := pipForm.FindStringSubmatch(p.Spec()); m != nil {
			return "pip:" + m[1]
		}
	} else if m := npmForm.FindStringSubmatch(p.Spec()); m != nil {
		return "npm:" + m[1]
	}
	return string(p)
}

// covers reports whether this rule allows everything that other allows.
func (p PackageRule) covers(other PackageRule) bool {
	if prefix, any := strings.CutSuffix(string(p), "*"); p.Any() && any {
		return strings.HasPrefix(string(other), prefix)
	}
	return p == other || string(p) == other.name()
}

// meetPackages returns what two rules both allow, if one covers the other.
func meetPackages(a, b PackageRule) (PackageRule, bool) {
	switch {
	case b.covers(a):
		return a, true
	case a.covers(b):
		return b, true
	}
	return "", false
}
