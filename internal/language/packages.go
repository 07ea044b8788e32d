package language

import (
	"fmt"
	"strings"

	"github.com/unitask/unitask/policy"
)

// Installer is how a language's packages are installed.
type Installer struct {
	System  string // of policy.PackageRule
	Tool    string // of image.Store.Tool
	Program string // runs in the machine; guest/*/packages.*
	Place   string // where code finds them, with the version in it (image.At)
	// Compilers is the name of the image in which packages without a binary are compiled. Older versions have another
	// (CompilersFor). Debian lists its Debian packages, unless the user's file with that name says otherwise.
	Compilers string
	Debian    []string
}

// compilers are packages of Debian with what compiles C and C++.
var compilers = []string{"gcc", "g++", "libc6-dev", "make", "pkg-config"}

// CompilersFor returns the name of the image in which packages for an image are compiled, and that of the image that it
// begins with. Each version of the language has its own.
func (l *Language) CompilersFor(name string) (compilers, from string) {
	compilers, from = l.Packages.Compilers, l.FirstLike(name)
	if _, version, older := strings.Cut(from, "@"); older {
		compilers += "-" + strings.ReplaceAll(version, ".", "-")
	}
	return compilers, from
}

const maxInstalled = 100 // Packages that a run asks for

// CheckPackages returns what is wrong with a request's packages.
func (l *Language) CheckPackages(asked []string) error {
	bad := func(value, reason string) error {
		return policy.Bad("packages", fmt.Sprintf("%.100q", value), "%s", reason)
	}
	if len(asked) > maxInstalled {
		return bad(fmt.Sprintf("of %d entries", len(asked)), fmt.Sprintf("must have at most %d", maxInstalled))
	}
	for _, text := range asked {
		rule, err := policy.ParsePackage(text)
		switch {
		case err != nil:
			return bad(text, err.Error())
		case rule.Any():
			return bad(text, "is no package: * is for ceilings")
		case l.Packages == nil:
			return bad(text, "is not for "+l.Name+": packages are for Python (pip:) and JavaScript (npm:) in the bundled images")
		case l.Packages.System != rule.System():
			return bad(text, fmt.Sprintf("is not for %s, whose packages are %s:NAME", l.Name, l.Packages.System))
		}
	}
	return nil
}
