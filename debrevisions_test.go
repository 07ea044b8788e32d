package unitask_test

import (
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
)

// An unpacked package may need a newer revision of an image's package, but no newer version. A package that dpkg
// installs may need neither.
func TestOwnDebianRevisions(t *testing.T) {
	a := newArchive(t)
	a.put(t, "libc6", "2.36-9+deb12u99", "", "")
	a.put(t, "libx-dev", "1", "Depends: libc6 (= 2.36-9+deb12u99)\n", "", debFile("./usr/include/x.h", ""))
	a.put(t, "libnew", "3.0-1", "", "")
	a.put(t, "newer", "1", "Depends: libnew (>= 3.0)\n", "", debFile("./usr/share/newer", ""))
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	status := ""
	for _, p := range [][2]string{{"libc6", "2.36-9+deb12u14"}, {"libnew", "2.9-4"}} {
		status += "Package: " + p[0] + "\nStatus: hold ok installed\nMaintainer: t\nArchitecture: " +
			string(image.HostArch()) + "\nMulti-Arch: foreign\nVersion: " + p[1] + "\nDescription: t\n\n"
	}
	for _, c := range []struct {
		spec     string
		unpacked bool
		says     string
	}{
		{"libx-dev", true, ""},
		{"libx-dev", false, "libx-dev : Depends: libc6 (= 2.36-9+deb12u99)"},
		{"newer", true, "newer : Depends: libnew (>= 3.0)"},
	} {
		list, err := rt.Images().Parts().Debs(t.Context(), image.HostArch(), []byte(status), c.unpacked, []string{c.spec},
			nil,
			t.TempDir())
		if c.says == "" && (err != nil || len(list) != 1 || list[0].Name != c.spec) ||
			c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s, unpacked %v: %v %v", c.spec, c.unpacked, list, err)
		}
	}
}
