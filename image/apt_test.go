package image

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A mirror that is down, or empty sources, do not mean that a release lacks a part.
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
		func(p LockedPart) bool { return p.From == "debian" && p.mayGo() }, // a release may lack it
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
		"a mirror that is down": {"deb [trusted=yes] " + gone.URL + " ./\n",
			strings.TrimPrefix(gone.URL, "http://127.0.0.1:"), parts},
		"no sources": {"", "have no package for " + string(arch) + " at all", parts[:2]},
	} {
		t.Run(name, func(t *testing.T) {
			useSources(t, c.source)
			apt := fakeStore(t).Parts().apt(arch, locked)
			for _, p := range c.parts {
				got, err := apt.download(t.Context(), p, t.TempDir())
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), takeBundle) {
					t.Errorf("%s: %+v %v", p.Name, got, err)
				}
			}
		})
	}
}

// useSources makes apt read these sources and no others.
func useSources(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	list := filepath.Join(dir, "sources.list")
	must(t, os.WriteFile(list, []byte(text), 0o644))
	config := fmt.Sprintf(
		"Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"/dev/null\";\nAcquire::http::Proxy::127.0.0.1 \"DIRECT\";\nAcquire::http::Proxy::127.0.0.2 \"DIRECT\";\nAcquire::Retries::Delay \"false\";\n", list)
	must(t, os.WriteFile(filepath.Join(dir, "apt.conf"), []byte(config), 0o644))
	t.Setenv("APT_CONFIG", filepath.Join(dir, "apt.conf"))
}

// If a third-party source is unreadable, a library that the distribution lacks counts as missing. If the distribution's
// own source is unreadable, nothing is known, even if apt still has its old index.
func TestAptSourceDown(t *testing.T) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("apt-get is not on this machine")
	}
	arch := HostArch()
	index := ""
	for name, depends := range map[string]string{"libc6": "",
		"linux-image-cloud-" + string(arch): "Depends: linux-image-9\n", "other": ""} {
		index += fmt.Sprintf(
			"Package: %s\nVersion: 9-1\nArchitecture: %s\n%sFilename: ./%[1]s.deb\nSize: 1\nSHA256: %064[4]d\n\n", name, arch,
			depends, 1)
	}
	serve := func(host, index string) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/Packages") {
				http.NotFound(w, r)
				return
			}
			_, _ = w.Write([]byte(index))
		}))
		s.Listener.Close()
		var err error
		s.Listener, err = net.Listen("tcp", host+":0")
		must(t, err)
		s.Start()
		return s
	}
	// If one port of a host is down, apt takes all its ports to be down.
	ours, theirs := serve("127.0.0.1", index), serve("127.0.0.2",
		"Package: theirs\nVersion: 9-1\nArchitecture: all\nFilename: ./x.deb\nSize: 1\n\n")
	defer ours.Close()
	locked := []LockedPart{
		{Name: libcPart, Arch: arch, From: "debian", Package: "libc6", Version: "1"},
		{Name: kernelPart, Arch: arch, From: "debian", Package: "linux-image-1", Version: "1",
			Successors: []string{"linux-image-cloud-" + string(arch)}},
		{Name: "gone", Arch: arch, From: "debian", Package: "libgone1", Version: "1"},
		{Name: "tool", Arch: arch, From: "debian", Package: "tool", Version: "1"},
	}
	useSources(t, "deb [trusted=yes] "+ours.URL+" ./\ndeb [trusted=yes] "+theirs.URL+" ./\n")
	s := fakeStore(t)
	var said []string
	s.log = func(line string) { said = append(said, line) }
	check := func(how, libErr, toolErr, log string) {
		t.Helper()
		said = nil
		apt := s.Parts().apt(arch, locked)
		got, err := apt.download(t.Context(), locked[2], t.TempDir())
		if libErr == "" && (err != nil || got.version != gone) ||
			libErr != "" && (err == nil || !strings.Contains(err.Error(), libErr)) {
			t.Errorf("%s: a library: %+v %v", how, got, err)
		}
		if all := strings.Join(said, "\n"); (all != "") != (log != "") || !strings.Contains(all, log) {
			t.Errorf("%s: said %q", how, all)
		}
		if got, err := apt.download(t.Context(), locked[3], t.TempDir()); err == nil ||
			!strings.Contains(err.Error(), "have no tool: "+takeBundle) || !strings.Contains(err.Error(), toolErr) {
			t.Errorf("%s: a tool: %+v %v", how, got, err)
		}
	}
	check("all are read", "", "", "")
	theirs.Close()
	check("a foreign one is down", "", theirs.URL, theirs.URL)
	ours.Close()
	check("all are down", "libgone1 is not found: this host's package sources can't be read: ", ours.URL, "")
}

// The source of a file that could not be fetched.
func TestMadisonSources(t *testing.T) {
	const list = "     libc6 | 2.36-9 | http://a.example/debian bookworm/main amd64 Packages\n libc6 | 2 | http://b.example ./ Packages\n libc6 | 2 | mirror+file:/etc/apt/m.list x/main amd64 Packages\nN: nothing\n a | b\n"
	sources := madisonSources(list)
	if want := []string{"http://a.example/debian/dists/bookworm/", "http://b.example/",
		"mirror+file:/etc/apt/m.list/dists/x/"}; !slices.Equal(sources, want) {
		t.Fatalf("%q", sources)
	}
	failed := failedAddresses(
		"W: Failed to fetch http://a.example/debian/dists/bookworm/InRelease  Could not connect\nW: Some index files failed\nE: Failed to fetch http://b.example/./Packages  404\n")
	for i, source := range sources {
		if !isOf(failed, source) {
			t.Errorf("%s is of none of %q", source, failed)
		}
		if of := isOf([]string{"http://a.example/debian/dists/bookworm-backports/InRelease",
			"http://b.example.org/./Packages"}, source); of != (i == 2) {
			t.Errorf("%s: %v", source, of)
		}
	}
}
