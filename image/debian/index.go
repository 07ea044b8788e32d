package debian

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	version "github.com/knqyf263/go-deb-version"
)

// Index has the newest packages of an archive by name, and the providers of virtual packages.
type Index struct {
	Packages map[string]Package
	provides map[string]string
}

func newIndex() *Index { return &Index{Packages: map[string]Package{}, provides: map[string]string{}} }

// Package is an entry of an index.
type Package struct {
	Name, Version string
	Depends       [][]string // one of the names in each list is required
	File
}

// Bounds of an index. Debian's has 70 000 packages.
const (
	maxIndexLine = 1 << 20 // bytes
	maxIndexed   = 500_000 // packages
)

// packageName is the form of a package's name (deb-control(5)). Entries with other names are left out, because a name
// becomes a file name on the host.
var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{0,199}$`)

// add reads a list of packages (deb-control(5)). Of packages with one name, the newest stays.
func (x *Index) add(r io.Reader) error {
	var provides [][]string
	var pkg Package
	end := func() {
		if !packageName.MatchString(pkg.Name) {
			pkg.Name = ""
		}
		if old, there := x.Packages[pkg.Name]; pkg.Name != "" && (!there || Newer(pkg.Version, old.Version)) {
			x.Packages[pkg.Name] = pkg
			for _, names := range provides {
				if _, there := x.provides[names[0]]; !there {
					x.provides[names[0]] = pkg.Name
				}
			}
		}
		provides, pkg = nil, Package{}
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxIndexLine)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			end()
			if len(x.Packages) > maxIndexed {
				return fmt.Errorf("read the list of packages: it has more than %d", maxIndexed)
			}
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "Package":
			pkg.Name = value
		case "Version":
			pkg.Version = value
		case "Pre-Depends", "Depends":
			pkg.Depends = append(pkg.Depends, clauses(value)...)
		case "Provides":
			provides = clauses(value)
		case "Filename":
			pkg.Path = value
		case "SHA256":
			pkg.SHA256 = value
		case "Size":
			pkg.Size, _ = strconv.ParseInt(value, 10, 64) // 0 makes the fetch fail
		}
	}
	end()
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the list of packages: %w", err)
	}
	return nil
}

// Newer reports whether a version is newer than another (deb-version(7)).
func Newer(a, b string) bool {
	x, err := version.NewVersion(a)
	if err != nil {
		return false
	}
	y, err := version.NewVersion(b)
	return err != nil || x.GreaterThan(y)
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

// notInGuest lists packages that others require but no program in the guest needs. They set up a system, or provide
// functions that a machine without a screen lacks. vendor.lock leaves them out by hand.
var notInGuest = []string{
	"dpkg", "debconf", "perl", "perl-base", "python3", "python3.?", "python3.??", "readline-common", "install-info", "ucf",
	"sensible-utils", "gcc-*-base", "debianutils",
	"base-files", "netbase", "openssl", "openssl-provider-legacy", "liblastlog2-2",
	"liberror-perl", "git-man", "libsasl2-modules-db", "libnsl2", "libtirpc*",
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
func (x *Index) requires(name string) (list []string, err error) {
	for _, names := range x.Packages[name].Depends {
		if slices.ContainsFunc(names, leftOutOfGuest) {
			continue
		}
		found := ""
		for _, n := range names {
			if _, there := x.Packages[n]; there {
				found = n
			} else {
				found = x.provides[n]
			}
			if found != "" {
				break
			}
		}
		if found == "" {
			return nil, fmt.Errorf("package %s requires %s, which the release lacks", name,
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

// Closure returns a package and all that it requires, directly or not. It leaves out packages that others provide,
// and
// what only those require.
func (x *Index) Closure(name string, others func(string) bool) ([]string, error) {
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

// Successor returns the package that replaces another one in this archive, or "". It is the same package, or the one
// after the move to 64-bit times. Otherwise it differs only in numbers, and one of the metapackages leads to it.
func (x *Index) Successor(pkg string, metas []string) string {
	for _, name := range []string{pkg, pkg + "t64"} {
		if _, there := x.Packages[name]; there {
			return name
		}
	}
	if name := x.provides[pkg]; strings.HasPrefix(pkg, "lib") && name != "" {
		return name
	}
	for _, meta := range metas {
		if _, there := x.Packages[meta]; !there {
			continue
		}
		led, err := x.Closure(meta, func(string) bool { return false })
		if err != nil {
			continue
		}
		for _, name := range led {
			if numberless(name) == numberless(pkg) {
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

// kernelPackage matches packages that may contain a kernel's files. Until Debian 13 these are in linux-image-VERSION,
// which later leads to one package with the kernel and one with its modules.
var kernelPackage = regexp.MustCompile(`^linux-(?:image|binary|modules)-[0-9]`)

// kernelDepth is the number of steps from the metapackage to the kernel's files.
const kernelDepth = 2

// Kernel returns the kernel's packages. The first of the metapackages that the archive has leads to them.
func (x *Index) Kernel(metas []string) (found []string, err error) {
	for _, meta := range metas {
		todo := []string{meta}
		for range kernelDepth {
			var next []string
			for _, pkg := range todo {
				for _, name := range slices.Concat(x.Packages[pkg].Depends...) {
					if _, there := x.Packages[name]; there && kernelPackage.MatchString(name) && !slices.Contains(found, name) {
						found, next = append(found, name), append(next, name)
					}
				}
			}
			todo = next
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, fmt.Errorf("%s lead to no kernel", strings.Join(metas, " and "))
}
