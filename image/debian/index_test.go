package debian

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// archiveText is of a release in which python3.11 is python3.13, libssl3 has moved to 64-bit times, libicu is another
// one and ncurses has been split.
const archiveText = `Package: python3-minimal
Version: 3.13.5-1
Pre-Depends: python3.13-minimal (>= 3.13.5-1~)
Depends: dpkg (>= 1.13.20)

Package: python3.13-minimal
Version: 3.13.5-2+deb13u5
Pre-Depends: libc6 (>= 2.38)
Depends: libpython3.13-minimal (= 3.13.5-2+deb13u5), libexpat1 (>= 2.7.1), zlib1g:any (>= 1:1.2.0) [amd64]
Recommends: python3.13
Description: a text
 Depends: nothing (of a description)

Package: libpython3.13-minimal
Version: 3.13.5-2+deb13u5
Depends: libssl3t64

Package: libssl3t64
Version: 3.5.1
Depends: libc6, openssl-provider-legacy, debconf | debconf-2.0
Provides: libssl3 (= 3.5.1)

Package: openssl-provider-legacy
Version: 3.5.1
Depends: libssl3t64

Package: libexpat1
Version: 2.7
Depends: libc6

Package: zlib1g
Version: 1:1.3

Package: zlib1g
Version: 1:1.2

Package: libc6
Version: 2.41-12

Package: tool
Version: 1
Depends: gone-name | awk, libexpat1

Package: gawk
Version: 5
Provides: awk
Depends: libnew7

Package: libnew7
Version: 7
Depends: tool

Package: broken
Version: 1
Depends: libexpat1, not-there (>= 2) | nor-this`

func TestIndex(t *testing.T) {
	x, err := parseIndex(strings.NewReader(archiveText))
	must(t, err)
	if v := x.packages["zlib1g"].version; v != "1:1.3" || len(x.packages) != 12 {
		t.Errorf("zlib1g %s of %d packages", v, len(x.packages))
	}
	for _, c := range []struct{ pkg, others, want string }{
		{"python3.13-minimal", "",
			"python3.13-minimal libc6 libpython3.13-minimal libexpat1 zlib1g libssl3t64 openssl-provider-legacy"},
		{"python3.13-minimal", "libc6 libpython3.13-minimal libexpat1 zlib1g", "python3.13-minimal"},
		{"libssl3t64", "libc6", "libssl3t64 openssl-provider-legacy"},
		{"tool", "libexpat1", "tool gawk libnew7"}, // a ring, an alternative, and who provides a name
		{"broken", "", ""},
	} {
		got, err := x.closure(c.pkg, func(name string) bool { return slices.Contains(strings.Fields(c.others), name) })
		if strings.Join(got, " ") != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s without %s: %q %v", c.pkg, c.others, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "package broken requires not-there or nor-this, which") {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		part LockedPart
		want string
		may  bool
	}{
		{LockedPart{Name: "python3.11-minimal", Package: "python3.11-minimal",
			Successors: []string{"python4", "python3-minimal"}}, "python3.13-minimal", false},
		{LockedPart{Name: "libpython3.11-minimal", Package: "libpython3.11-minimal", Successors: []string{"python3-minimal"}},
			"libpython3.13-minimal", false},
		{LockedPart{Name: "python3-minimal", Package: "python3-minimal"}, "python3-minimal", false},
		{LockedPart{Name: "libssl3", Package: "libssl3"}, "libssl3t64", true},
		{LockedPart{Name: "libicu72", Package: "libicu72"}, "", true},
		{LockedPart{Name: "python3-lib2to3", Package: "python3-lib2to3", Dropped: true}, "", true},
		{LockedPart{Name: "jq", Package: "jq"}, "", false},
		{LockedPart{Name: "libstdc++", Package: "libstdc++6", Arch: AMD64}, "", false}, // of which files are taken: they must be there
		{LockedPart{Name: "tool", Package: "tool3", Successors: []string{"broken"}}, "", false},
	} {
		if got := x.successor(c.part); got != c.want || c.part.mayGo() != c.may {
			t.Errorf("%s: %q, may go: %v", c.part.Name, got, c.part.mayGo())
		}
	}
}

// An index that is too long, or has a line that is, is refused.
func TestIndexBounds(t *testing.T) {
	if _, err := parseIndex(strings.NewReader("Package: a\nDepends: " + strings.Repeat("x", maxIndexLine+1))); err == nil {
		t.Error("a long line")
	}
	var many strings.Builder
	for n := range maxIndexed + 1 {
		fmt.Fprintf(&many, "Package: p%d\n\n", n)
	}
	if _, err := parseIndex(strings.NewReader(many.String())); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("many packages: %v", err)
	}
	var chain strings.Builder
	for n := range maxClosure + 2 {
		fmt.Fprintf(&chain, "Package: p%d\nDepends: p%d\n\n", n, n+1)
	}
	x, err := parseIndex(strings.NewReader(chain.String() + "Package: p" + fmt.Sprint(maxClosure+2) + "\n"))
	must(t, err)
	if _, err := x.closure("p0", func(string) bool { return false }); err == nil ||
		!strings.Contains(err.Error(), "more than") {
		t.Errorf("a long chain: %v", err)
	}
}

// Patterns leave out what they are for, and no version of Python itself.
func TestLeftOutOfGuest(t *testing.T) {
	for name, want := range map[string]bool{"dpkg": true, "gcc-14-base": true, "python3": true, "python3.13": true,
		"python3.13-minimal": false, "libjs-jquery": true, "python3-pytz": false, "libssl3t64": false} {
		if leftOutOfGuest(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// A text names the versions that are here, or that would be fetched.
func TestVersions(t *testing.T) {
	s := fakeStore(t)
	locked, err := Lock(HostArch())
	must(t, err)
	for _, p := range locked {
		if p.Name == "python3-numpy" && p.Version != "1:1.24.2-1+deb12u1" {
			t.Fatalf("vendor.lock has numpy %s by now: change what is expected here", p.Version)
		}
	}
	if got := s.Versions("numpy {python3-numpy} {nothing} {} {A}"); got != "numpy 1.24 {nothing} {} {A}" {
		t.Error(got)
	}
	must(t, s.Parts().addPart(HostArch(), "python3-numpy",
		func(string) (Part, error) { return Part{Name: "python3-numpy", Version: "1:2.2.4+ds-1"}, nil }))
	if got := s.Versions("numpy {python3-numpy}."); got != "numpy 2.2." {
		t.Error(got)
	}
}

func TestAt(t *testing.T) {
	for runtime, want := range map[string]string{"3.11.2-6+deb12u9": "/usr/lib/python3.11/x",
		"3.13.5-2": "/usr/lib/python3.13/x", "3.14~rc1-1": "/usr/lib/python3.14/x", "3": "/usr/lib/python3./x",
		"": "/usr/lib/python./x"} {
		if got := At("/usr/lib/pythonVERSION/x", runtime); got != want {
			t.Errorf("%q: %s", runtime, got)
		}
	}
	p := Payload{
		Program: "/usr/bin/pythonVERSION", Include: "pythonVERSION",
		Folders: []string{"/usr/lib/pythonVERSION", "/usr/share"},
		Files:   map[string]string{"/l/pythonVERSION/": "", "/f": "VERSION"},
		Compile: &Compile{Dirs: []string{"/usr/lib/pythonVERSION"}, Args: []string{"-q", "ROOT/usr/lib/pythonVERSION"},
			Env: []string{"A=b"}},
	}
	want := "{/usr/bin/python3.13 python3.13 [/usr/lib/python3.13 /usr/share] map[/f:VERSION /l/python3.13/:] {[/usr/lib/python3.13] [-q ROOT/usr/lib/python3.13] [A=b]}}"
	at := p.at("3.13.5-2")
	if got := fmt.Sprint(struct {
		a, b string
		c    []string
		d    map[string]string
		e    Compile
	}{at.Program, at.Include, at.Folders, at.Files, *at.Compile}); got != want {
		t.Error(got)
	}
	if p.Files["/l/pythonVERSION/"] != "" || p.Compile.Dirs[0] != "/usr/lib/pythonVERSION" {
		t.Errorf("it changed what it was made of: %+v", p)
	}
}
