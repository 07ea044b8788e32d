package image

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// aptIndex describes an archive: its packages by name, and the providers of virtual packages.
type aptIndex struct {
	packages map[string]aptPackage
	provides map[string]string
}

// aptPackage is the package that apt would install.
type aptPackage struct {
	version string
	depends [][]string // one of the names in each list is required
}

// Bounds of an index, which apt has written and verified. Debian's has 70 000 packages.
const (
	maxIndexLine = 1 << 20
	maxIndexed   = 500_000
)

// parseIndex reads `apt-cache dumpavail` (deb-control(5)).
func parseIndex(r io.Reader) (*aptIndex, error) {
	x := &aptIndex{packages: map[string]aptPackage{}, provides: map[string]string{}}
	var name string
	var provides [][]string
	var pkg aptPackage
	end := func() {
		if _, there := x.packages[name]; name == "" || there {
			name, provides, pkg = "", nil, aptPackage{}
			return
		}
		x.packages[name] = pkg
		for _, names := range provides {
			if _, there := x.provides[names[0]]; !there {
				x.provides[names[0]] = name
			}
		}
		name, provides, pkg = "", nil, aptPackage{}
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxIndexLine)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			end()
			if len(x.packages) > maxIndexed {
				return nil, fmt.Errorf("read apt's index: more than %d packages", maxIndexed)
			}
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "Package":
			name = value
		case "Version":
			pkg.version = value
		case "Pre-Depends", "Depends":
			pkg.depends = append(pkg.depends, clauses(value)...)
		case "Provides":
			provides = clauses(value)
		}
	}
	end()
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read apt's index: %w", err)
	}
	return x, nil
}

// clauses returns the names in a list of dependencies, without versions and architectures.
func clauses(list string) (all [][]string) {
	for clause := range strings.SplitSeq(list, ",") {
		var names []string
		for alternative := range strings.SplitSeq(clause, "|") {
			name := strings.TrimSpace(alternative)
			if i := strings.IndexAny(name, " (:["); i >= 0 {
				name = name[:i]
			}
			if name != "" {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			all = append(all, names)
		}
	}
	return all
}

// notInGuest lists packages that others require but no program in the guest needs: for setting up a system, or for
// functions that a machine without a screen lacks. vendor.lock leaves them out by hand.
var notInGuest = []string{
	"dpkg", "debconf", "perl", "perl-base", "python3", "python3.?", "python3.??", "readline-common", "install-info", "ucf",
	"sensible-utils", "gcc-*-base", "debianutils",
	"base-files", "netbase", "openssl", "liberror-perl", "git-man", "libsasl2-modules-db", "libnsl2", "libtirpc*",
	"mime-support", "init-system-helpers", "lsb-base",
	"libglx-mesa0", "libx11-data", "x11-common", "libpam*", "libaudit*", "util-linux-extra", "login*", "libjs-*",
	"unicode-data",
	"python3-tk", "python3-pil.imagetk", "python3-pkg-resources", "python3-jdcal", "python3-pythran", "python3-numpy-dev",
	"python3-brotli", "python3-fs", "python3-lz4",
	"python3-sympy", "python3-ufolib2", "python3-unicodedata2", "python3-zopfli", "python3-munkres", "python3-uharfbuzz",
}

func leftOutOfGuest(name string) bool {
	return slices.ContainsFunc(notInGuest, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// requires returns the packages that a package requires directly.
func (x *aptIndex) requires(name string) (list []string, err error) {
	for _, names := range x.packages[name].depends {
		if slices.ContainsFunc(names, leftOutOfGuest) {
			continue
		}
		found := ""
		for _, n := range names {
			if _, there := x.packages[n]; there {
				found = n
			} else {
				found = x.provides[n]
			}
			if found != "" {
				break
			}
		}
		if found == "" {
			return nil, fmt.Errorf("package %s requires %s, which this host's package sources have not", name,
				strings.Join(names, " or "))
		}
		if !leftOutOfGuest(found) {
			list = append(list, found)
		}
	}
	return list, nil
}

// maxClosure bounds a walk; a desktop has fewer packages.
const maxClosure = 2000

// closure returns a package and all that it requires, directly or not. It leaves out packages that others provide,
// and
// what only those require.
func (x *aptIndex) closure(name string, others func(string) bool) ([]string, error) {
	found := []string{name}
	for i := 0; i < len(found); i++ {
		required, err := x.requires(found[i])
		if err != nil {
			return nil, err
		}
		for _, r := range required {
			if !slices.Contains(found, r) && !others(r) {
				found = append(found, r)
			}
		}
		if len(found) > maxClosure {
			return nil, fmt.Errorf("package %s requires more than %d others", name, maxClosure)
		}
	}
	return found, nil
}

// successor returns the package that replaces a locked one in this archive, or "". It is the same package, the one
// after
// the move to 64-bit times, or one that differs only in numbers and that one of the part's successors leads to.
func (x *aptIndex) successor(p LockedPart) string {
	for _, name := range []string{p.Package, p.Package + "t64"} {
		if _, there := x.packages[name]; there {
			return name
		}
	}
	for _, meta := range p.Successors {
		if _, there := x.packages[meta]; !there {
			continue
		}
		led, err := x.closure(meta, func(string) bool { return false })
		if err != nil {
			continue
		}
		for _, name := range led {
			if numberless(name) == numberless(p.Package) {
				return name
			}
		}
	}
	return ""
}

// numberless returns a package's name with every run of digits as one 0.
func numberless(name string) string {
	var b strings.Builder
	for i, r := range name {
		digit := r >= '0' && r <= '9'
		if digit && i > 0 && name[i-1] >= '0' && name[i-1] <= '9' {
			continue
		}
		if digit {
			r = '0'
		}
		b.WriteRune(r)
	}
	return b.String()
}
