package image

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A mirror that is down, or sources that have nothing, is not taken for a release that lacks a part.
func TestAptDown(t *testing.T) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("apt-get is not on this machine")
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	arch := HostArch()
	locked, err := Lock(arch)
	must(t, err)
	var parts []LockedPart
	for _, want := range []func(LockedPart) bool{
		func(p LockedPart) bool { return p.From == "debian" && p.mayGo() }, // which a release may lack
		func(p LockedPart) bool { return p.Name == libcPart },
		func(p LockedPart) bool { return p.Name == kernelPart },
	} {
		for _, p := range locked {
			if want(p) {
				parts = append(parts, p)
				break
			}
		}
	}
	if len(parts) != 3 {
		t.Fatalf("%+v", parts)
	}
	for name, c := range map[string]struct {
		source, says string
		parts        []LockedPart
	}{
		"a mirror that is down": {"deb [trusted=yes] " + gone.URL + " ./\n", strings.TrimPrefix(gone.URL, "http://127.0.0.1:"), parts},
		"no sources":            {"", "have no package for " + string(arch) + " at all", parts[:2]},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			list := filepath.Join(dir, "sources.list")
			must(t, os.WriteFile(list, []byte(c.source), 0o644))
			config := fmt.Sprintf("Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"/dev/null\";\nAcquire::http::Proxy::127.0.0.1 \"DIRECT\";\nAcquire::Retries::Delay \"false\";\n", list)
			must(t, os.WriteFile(filepath.Join(dir, "apt.conf"), []byte(config), 0o644))
			t.Setenv("APT_CONFIG", filepath.Join(dir, "apt.conf"))
			apt := fakeStore(t).apt(arch, locked)
			for _, p := range c.parts {
				got, err := apt.download(t.Context(), p, t.TempDir())
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), takeBundle) {
					t.Errorf("%s: %+v %v", p.Name, got, err)
				}
			}
		})
	}
}
