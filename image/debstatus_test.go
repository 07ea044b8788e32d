package image

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A container's status is copied with the fields that apt needs, and only with valid values.
func TestReadStatus(t *testing.T) {
	good := "Package: a-b\nStatus: install ok installed\nArchitecture: all\nVersion: 1:2~3-4+b5\nMulti-Arch: foreign\n" +
		"Depends: c (>= 1), d | e:any\nConffiles:\n /etc/x 0123\nDescription: x\n y: z\nConfig-Version: 1\n"
	gone := "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n"
	out, names, err := readStatus([]byte(good + "\n" + gone + "\n\n\n" + strings.ReplaceAll(good, "a-b", "held") + "\n"))
	want := "Package: a-b\nStatus: install ok installed\nMaintainer: unitask\nDescription: in the image\n" +
		"Architecture: all\nDepends: c (>= 1), d | e:any\nMulti-Arch: foreign\nVersion: 1:2~3-4+b5\n\n"
	if err != nil || string(out) != want+strings.ReplaceAll(want, "a-b", "held") ||
		!slices.Equal(names, []string{"a-b", "held"}) {
		t.Errorf("%v %v\n%s", err, names, out)
	}
	for text, says := range map[string]string{
		strings.ReplaceAll(good, "a-b", "-o"):                              `has Package: "-o"`,
		strings.ReplaceAll(good, "a-b", "A\x1b[31m"):                       "has Package",
		strings.ReplaceAll(good, "1:2~3-4+b5", "1 2"):                      "has Version",
		strings.ReplaceAll(good, "Version: 1:2~3-4+b5\n", ""):              "without a version",
		strings.ReplaceAll(good, "c (>= 1)", "c;${x}"):                     "has Depends",
		strings.ReplaceAll(good, "c (>= 1)", strings.Repeat("c,", 40_000)): "has Depends",
		strings.Repeat(good+"\n", maxPackages+1):                           "more than 20000 packages",
		"Status: install ok installed\n":                                   "without a version",
	} {
		if _, _, err := readStatus([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60q: %v, want %s", text, err, says)
		}
	}
	if out, names, err := readStatus(nil); err != nil || len(out)+len(names) > 0 {
		t.Errorf("nothing: %q %v %v", out, names, err)
	}
}

func TestSameRelease(t *testing.T) {
	release := func(id, code string) string {
		return fmt.Sprintf("PRETTY_NAME=\"%s (%s)\"\nID=%[1]s\nVERSION_CODENAME=%[2]s\n", id, code)
	}
	for _, c := range []struct{ image, host, says string }{
		{release("debian", "bookworm"), release("debian", "bookworm"), ""},
		{release("debian", "trixie"), release("debian", "bookworm"),
			"is debian (trixie), and this host's apt has the packages of debian (bookworm)"},
		{release("ubuntu", "bookworm"), release("debian", "bookworm"), "is ubuntu (bookworm)"},
		{"", release("debian", "bookworm"), "is another system"},
		{"PRETTY_NAME=\"\x1b[31m\"\nID=x\n", release("debian", "bookworm"), "is another system"},
	} {
		err := sameRelease(c.image, c.host)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q on %q: %v", c.image, c.host, err)
		}
	}
}
