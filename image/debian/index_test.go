package debian

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// archiveText describes a release in which python3.11 is now python3.13, libssl3 has moved to 64-bit times, libicu is
// another package and ncurses was split.
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
Depends: libc6, libprovider3, debconf | debconf-2.0
Provides: libssl3 (= 3.5.1)

Package: libprovider3
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

Package: libcurl3t64-gnutls
Version: 8
Provides: libcurl3-gnutls (= 8)

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
	x := indexOf(t, archiveText)
	if v := x.Packages["zlib1g"].Version; v != "1:1.3" || len(x.Packages) != 13 {
		t.Errorf("zlib1g %s of %d packages", v, len(x.Packages))
	}
	for _, c := range []struct{ pkg, others, want string }{
		{"python3.13-minimal", "",
			"python3.13-minimal libc6 libpython3.13-minimal libexpat1 zlib1g libssl3t64 libprovider3"},
		{"python3.13-minimal", "libc6 libpython3.13-minimal libexpat1 zlib1g", "python3.13-minimal"},
		{"libssl3t64", "libc6", "libssl3t64 libprovider3"},
		{"tool", "libexpat1", "tool gawk libnew7"}, // a cycle, an alternative, and a provider of a name
		{"broken", "", ""},
	} {
		got, err := x.Closure(c.pkg, func(name string) bool { return slices.Contains(strings.Fields(c.others), name) })
		if strings.Join(got, " ") != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s without %s: %q %v", c.pkg, c.others, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "package broken requires not-there or nor-this, which") {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		pkg   string
		metas []string
		want  string
	}{
		{"python3.11-minimal", []string{"python4", "python3-minimal"}, "python3.13-minimal"},
		{"libpython3.11-minimal", []string{"python3-minimal"}, "libpython3.13-minimal"},
		{"python3-minimal", nil, "python3-minimal"}, {"libssl3", nil, "libssl3t64"}, {"libicu72", nil, ""},
		{"libcurl3-gnutls", nil, "libcurl3t64-gnutls"}, {"jq", nil, ""}, {"awk", nil, ""}, {"tool3", []string{"broken"}, ""},
	} {
		if got := x.Successor(c.pkg, c.metas); got != c.want {
			t.Errorf("%s: %q, want %q", c.pkg, got, c.want)
		}
	}
}

func TestKernel(t *testing.T) {
	for name, row := range map[string]struct{ text, want string }{
		"one package": {"Package: linux-image-cloud-amd64\nVersion: 1\nDepends: linux-image-6.12-cloud (= 1)\n\n" +
			"Package: linux-image-6.12-cloud\nVersion: 1\nDepends: kmod\n", "linux-image-6.12-cloud"},
		"two, by a second metapackage": {"Package: linux-image-virtual\nVersion: 1\nDepends: linux-image-7\n\n" +
			"Package: linux-image-7\nVersion: 1\nDepends: linux-binary-7, linux-modules-7\n\n" +
			"Package: linux-binary-7\nVersion: 1\n\nPackage: linux-modules-7\nVersion: 1\n",
			"linux-image-7 linux-binary-7 linux-modules-7"},
		"none": {"Package: linux-image-cloud-amd64\nVersion: 1\nDepends: linux-image-9 (= 1)\n", ""},
	} {
		got, err := indexOf(t, row.text).Kernel([]string{"linux-image-cloud-amd64", "linux-image-virtual"})
		if strings.Join(got, " ") != row.want || (err == nil) != (row.want != "") {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}

func indexOf(t *testing.T, text string) *Index {
	t.Helper()
	x := newIndex()
	if err := x.add(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	return x
}

// An index that is too long, or has too long a line, is refused.
func TestIndexBounds(t *testing.T) {
	long := "Package: a\nDepends: " + strings.Repeat("x", maxIndexLine+1)
	if err := newIndex().add(strings.NewReader(long)); err == nil {
		t.Error("a long line")
	}
	var many strings.Builder
	for n := range maxIndexed + 1 {
		fmt.Fprintf(&many, "Package: p%d\n\n", n)
	}
	if err := newIndex().add(strings.NewReader(many.String())); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("many packages: %v", err)
	}
	var chain strings.Builder
	for n := range maxClosure + 2 {
		fmt.Fprintf(&chain, "Package: p%d\nDepends: p%d\n\n", n, n+1)
	}
	x := indexOf(t, chain.String()+"Package: p"+fmt.Sprint(maxClosure+2)+"\n")
	if _, err := x.Closure("p0", func(string) bool { return false }); err == nil ||
		!strings.Contains(err.Error(), "more than") {
		t.Errorf("a long chain: %v", err)
	}
}

// The patterns leave out the packages that they are meant for, and no version of Python itself.
func TestLeftOutOfGuest(t *testing.T) {
	for name, want := range map[string]bool{"dpkg": true, "gcc-14-base": true, "python3": true, "python3.13": true,
		"python3.13-minimal": false, "libjs-jquery": true, "python3-pytz": false, "libssl3t64": false} {
		if leftOutOfGuest(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// A name in an index becomes a file name on the host, so an entry with an invalid name is left out.
func TestAttackPackageNames(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"../../x", "a/b", "-o", "a b", ".", "..", "A", "a\x00b", "a\tb",
		strings.Repeat("a", 201)} {
		fmt.Fprintf(&text, "Package: %s\nVersion: 1\nProvides: libz\n\n", name)
	}
	x := indexOf(t, text.String()+"Package: good\nVersion: 1\nDepends: libz\n\n"+
		"Package: linux-image-cloud\nVersion: 1\nDepends: linux-image-1/../../x\n\n"+
		"Package: linux-image-1/../../x\nVersion: 1\n")
	_, lacks := x.Closure("good", func(string) bool { return false })
	_, none := x.Kernel([]string{"linux-image-cloud"})
	got := fmt.Sprintf("%d packages, %t, %t", len(x.Packages), lacks != nil, none != nil)
	attack.Check(t, "names in a mirror's index that are no packages'", "2 packages, true, true", got)
}

// An invalid version never replaces a valid one, and never crashes the program.
func TestVersions(t *testing.T) {
	for _, bad := range []string{"", ":", "1:", "-", "x", "-1:1", "99999999999999999999999:1", "1 2", "é", "1:\x00"} {
		if Newer(bad, "1") || !Newer("1", bad) {
			t.Errorf("%q is newer than 1, or 1 is not newer", bad)
		}
	}
	for _, c := range []struct{ old, young string }{{"1.9", "1.10"}, {"1~rc1", "1"}, {"9", "1:1"}, {"1-1", "1-1+deb13u1"},
		{"99999999999999999998", "1:0"}} {
		if !Newer(c.young, c.old) || Newer(c.old, c.young) {
			t.Errorf("%s and %s", c.young, c.old)
		}
	}
}
