package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A text names the vendored versions, or those that would be fetched.
func TestVersions(t *testing.T) {
	s := fakeStore(t)
	locked, err := Lock(HostArch())
	must(t, err)
	for _, p := range locked {
		if p.Name == "python3-numpy" && p.Version != "1:2.2.4+ds-1" {
			t.Fatalf("vendor.lock has numpy %s by now: change what is expected here", p.Version)
		}
	}
	if got := s.Versions("numpy {python3-numpy} {nothing} {} {A}"); got != "numpy 2.2 {nothing} {} {A}" {
		t.Error(got)
	}
	must(t, s.Parts().addPart(HostArch(), "python3-numpy",
		func(string) (Part, error) { return Part{Name: "python3-numpy", Version: "1:2.4.0+ds-1"}, nil }))
	if got := s.Versions("numpy {python3-numpy}."); got != "numpy 2.4." {
		t.Error(got)
	}
}

func TestLanguageVersion(t *testing.T) {
	s := fakeStore(t)
	if got := s.Parts().LanguageVersion(HostArch()); got != "1" {
		t.Errorf("vendored: %q, want 1", got)
	}
	for version, want := range map[string]string{"3.13.5-2+deb13u5": "3.13.5", "24.21.0": "24.21.0",
		"v0.0.1-go1.26.8.linux-amd64": "1.26.8"} {
		must(t, s.Parts().addPart(HostArch(), "node", func(dir string) (Part, error) {
			return Part{Name: "node", Version: version}, os.WriteFile(filepath.Join(dir, "node"), nil, 0o755)
		}))
		if got := s.Parts().LanguageVersion(HostArch()); got != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
	must(t, os.RemoveAll(s.vendorDir(HostArch())))
	if got := s.Parts().LanguageVersion(HostArch()); !strings.HasPrefix(got, "24.") {
		t.Errorf("of the lock: %q", got)
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
	want := "{/usr/bin/python3.13 python3.13 [/usr/lib/python3.13 /usr/share] map[/f:VERSION /l/python3.13/:] " +
		"{[/usr/lib/python3.13] [-q ROOT/usr/lib/python3.13] [A=b]}}"
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
