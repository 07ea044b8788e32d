package image

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/image/debian"
	"github.com/unitask/unitask/image/debian/debiantest"
	"github.com/unitask/unitask/internal/attack"
)

// partsOf returns a client for a test's archive, and what the store logs.
func partsOf(t *testing.T, server *debiantest.Archive, locked []LockedPart) (*debParts, *[]string) {
	t.Helper()
	s := fakeStore(t)
	s.Mirror = server.URL + "/debian"
	var said []string
	s.log = func(line string) { said = append(said, line) }
	d, err := s.Parts().debian(HostArch(), locked)
	must(t, err)
	d.archives[Release].Keys = server.Keys
	return d, &said
}

// lockedDeb returns a locked part whose package an archive of a test has, or had.
func lockedDeb(part, pkg, version, data string, metas ...string) LockedPart {
	return LockedPart{Name: part, Arch: HostArch(), From: "debian", Package: pkg, Version: version, Successors: metas,
		Release: Release, Path: "pool/main/" + pkg + "_" + version + "_" + string(HostArch()) + ".deb",
		Digest: "sha256-" + debiantest.Digest(data), Size: int64(len(data)), License: "MIT"}
}

// A part is the pinned package. If the archive no longer has it, the part is the successor with its requirements.
func TestDebParts(t *testing.T) {
	server, arch := debiantest.New(t), string(HostArch())
	server.Add(t, "trixie", arch,
		debiantest.Package{Name: "tool", Version: "1", Data: "tool 1"},
		debiantest.Package{Name: "old", Version: "2", Fields: "Depends: libmore1, libother1\n", Data: "old 2"},
		debiantest.Package{Name: "libmore1", Version: "1", Data: "more"},
		debiantest.Package{Name: "libother1", Version: "1", Data: "other"},
		debiantest.Package{Name: "linux-image-cloud", Version: "9", Fields: "Depends: linux-image-9 (= 9)\n", Data: "meta"},
		debiantest.Package{Name: "linux-image-9", Version: "9", Data: "kernel 9"})
	moved := lockedDeb("moved", "moved", "1", "moved")
	server.Add(t, "trixie-security", arch, debiantest.Package{Name: "moved", Version: "1", Data: "moved"})
	locked := []LockedPart{
		lockedDeb("tool", "tool", "1", "tool 1"),
		lockedDeb("old", "old", "1", "old 1"),
		lockedDeb(kernelPart, "linux-image-8", "8", "kernel 8", "linux-image-cloud"),
		lockedDeb("gone", "libgone1", "1", "gone"),
		lockedDeb("other", "libother1", "1", "other"),
		moved,
	}
	d, said := partsOf(t, server, locked)
	dir := t.TempDir()
	must(t, d.fetch(t.Context(), append(locked, LockedPart{Name: "node", From: "npm"}), dir))
	for part, want := range map[string]string{
		"tool": "tool 1 behind false: tool 1", "old": "old 2 behind true: old 2, more",
		kernelPart: "linux-image-9 9 behind true: kernel 9", "gone": " none behind true: ",
		"other": "libother1 1 behind false: other", "moved": "moved 1 behind false: moved",
	} {
		got := d.got[part]
		var texts []string
		for _, file := range got.files {
			text, err := os.ReadFile(file)
			must(t, err)
			texts = append(texts, string(text))
		}
		if is := fmt.Sprintf("%s %s behind %t: %s", got.pkg, got.version, got.behind, strings.Join(texts, ", ")); is != want {
			t.Errorf("%s: %s, want %s", part, is, want)
		}
	}
	if d.got["moved"].digest != moved.Digest || len(*said) > 0 || len(d.got) != len(locked) {
		t.Errorf("%+v, said %q", d.got["moved"], *said)
	}
}

// An unreadable archive does not count as a release that lacks a part. The error names the remedies.
func TestDebPartsRefused(t *testing.T) {
	server, arch := debiantest.New(t), string(HostArch())
	server.Add(t, "trixie", arch,
		debiantest.Package{Name: "broken", Version: "2", Fields: "Depends: nothere\n", Data: "x"})
	library, tool := lockedDeb("gone", "libgone1", "1", "gone"), lockedDeb("tool", "tool", "1", "tool")
	for name, row := range map[string]struct {
		part LockedPart
		keys string
		down bool
		says string
	}{
		"another key":         {library, debiantest.New(t).Keys, false, "has no signature of Debian's archive"},
		"a tool that is gone": {tool, server.Keys, false, "the release trixie has no tool"},
		"a requirement that lacks": {lockedDeb("broken", "broken", "1", "y"), server.Keys, false,
			"package broken requires nothere"},
		"no kernel": {lockedDeb(kernelPart, "linux-image-1", "1", "k", "linux-image-x"), server.Keys, false,
			"linux-image-x lead to no kernel"},
		"a mirror that is down": {library, server.Keys, true, "127.0.0.1:"},
	} {
		d, _ := partsOf(t, server, []LockedPart{row.part})
		d.archives[Release].Keys = row.keys
		if row.down {
			d.archives[Release].Mirrors = debian.Mirrors{Main: []string{"http://127.0.0.1:1/debian"}}
		}
		err := d.fetch(t.Context(), []LockedPart{row.part}, t.TempDir())
		if err == nil || !strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), takeBundle) ||
			!strings.Contains(err.Error(), "UNITASK_DEBIAN_MIRROR") {
			t.Errorf("%s: %v, want %q", name, err, row.says)
		}
	}
}

// Debian has signed old releases, too. A mirror that serves one can't bring back a package older than the lock's.
func TestAttackOldMirror(t *testing.T) {
	server := debiantest.New(t)
	server.Add(t, "trixie", string(HostArch()), debiantest.Package{Name: "tool", Version: "2", Data: "y"},
		debiantest.Package{Name: "linux-image-cloud", Version: "7", Fields: "Depends: linux-image-7\n", Data: "meta"},
		debiantest.Package{Name: "linux-image-7", Version: "7", Data: "kernel 7"})
	for name, row := range map[string]struct {
		part LockedPart
		says string
	}{
		"a tool": {lockedDeb("tool", "tool", "2.1", "y"), "the mirror's tool 2 is older than 2.1 of vendor.lock"},
		"a kernel": {lockedDeb(kernelPart, "linux-image-8", "8", "k", "linux-image-cloud"),
			"the mirror's linux-image-7 7 is older than 8 of vendor.lock"},
	} {
		d, _ := partsOf(t, server, []LockedPart{row.part})
		err := d.fetch(t.Context(), []LockedPart{row.part}, t.TempDir())
		got := fmt.Sprint(err)
		if err != nil && strings.Contains(got, row.says) && strings.Contains(got, takeBundle) {
			got = "refused"
		}
		attack.Check(t, "a mirror with an old release: "+name, "refused", got)
	}
}

// A full disk is not a mirror's fault: no message advises another one.
func TestDebPartsHost(t *testing.T) {
	tool := lockedDeb("tool", "tool", "1", "tool")
	d, _ := partsOf(t, debiantest.New(t), []LockedPart{tool})
	err := d.fetch(t.Context(), []LockedPart{tool}, filepath.Join(t.TempDir(), "none"))
	if err == nil || strings.Contains(err.Error(), "mirror") {
		t.Error(err)
	}
}

// A release may lack libraries that others replace, but no tool, and no library of which single files are used.
func TestMayGo(t *testing.T) {
	for _, c := range []struct {
		part LockedPart
		want bool
	}{
		{LockedPart{Name: "libssl3", Package: "libssl3"}, true},
		{LockedPart{Name: "libpython-minimal", Package: "libpython3.11-minimal", Successors: []string{"python3-minimal"}},
			false},
		{LockedPart{Name: "dropped", Package: "python3-lib2to3", Dropped: true}, true},
		{LockedPart{Name: "jq", Package: "jq"}, false},
		{LockedPart{Name: "libstdc++", Package: "libstdc++6", Arch: AMD64}, false},
	} {
		if got := c.part.mayGo(); got != c.want {
			t.Errorf("%s: %v, want %v", c.part.Name, got, c.want)
		}
	}
}

// A part of the store stays if it is the locked one or a successor of the same release.
func TestFits(t *testing.T) {
	debian := LockedPart{From: "debian", Release: Release, Digest: "sha256-1"}
	older := LockedPart{From: "debian", Release: Bookworm, Digest: "sha256-1"}
	npm := LockedPart{From: "npm", Digest: "sha512-1"}
	for name, row := range map[string]struct {
		part   Part
		locked LockedPart
		want   bool
	}{
		"the locked one":                {Part{Digest: "sha256-1"}, debian, true},
		"an older lock's":               {Part{Digest: "sha256-0"}, debian, false},
		"a successor":                   {Part{Digest: "sha256-2", BehindLock: true, Release: Release}, debian, true},
		"another release's successor":   {Part{Digest: "sha256-2", BehindLock: true, Release: "bookworm"}, debian, false},
		"a successor from long ago":     {Part{Digest: "sha256-2", BehindLock: true}, debian, false},
		"the same of an older release":  {Part{Digest: "sha256-2", BehindLock: true, Release: Bookworm}, older, true},
		"a newer release's":             {Part{Digest: "sha256-2", BehindLock: true, Release: Release}, older, false},
		"a newer release's of a bundle": {Part{Digest: "sha256-2", Bundled: true, Release: Release}, older, false},
		"of a bundle":                   {Part{Digest: "sha256-2", Bundled: true, Release: Release}, debian, true},
		"of a bundle of long ago":       {Part{Digest: "sha256-2", Bundled: true}, debian, false},
		"another version, of a bundle":  {Part{Digest: "sha512-2", Bundled: true}, npm, true},
		"another version, not a bundle": {Part{Digest: "sha512-2"}, npm, false},
	} {
		if got := row.part.fits(row.locked); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// vendor.lock has one package for each part of Debian's, with its place in the archive.
func TestLockOfDebian(t *testing.T) {
	for _, arch := range []Arch{AMD64, ARM64} {
		locked, err := Lock(arch)
		must(t, err)
		var seen []string
		for _, p := range locked {
			if slices.Contains(seen, p.Name) {
				t.Errorf("%s is there twice for %s", p.Name, arch)
			}
			seen = append(seen, p.Name)
			if p.From != "debian" {
				continue
			}
			base := filepath.Base(p.Path)
			if name, _, _ := strings.Cut(base, "_"); name != p.Package || !strings.HasPrefix(p.Path, "pool/") ||
				!strings.HasPrefix(p.Digest, "sha256-") {
				t.Errorf("%s for %s: package %s at %s, %s", p.Name, arch, p.Package, p.Path, p.Digest)
			}
		}
	}
}

// apt reads the mirror's lists with the archive's keys alone, wherever the home is. Nobody else can read a mirror's
// login.
func TestAptSources(t *testing.T) {
	if testing.Short() {
		t.Skip("starts apt; not in -short")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("no apt-get on this machine")
	}
	server := debiantest.New(t)
	server.Add(t, Release, string(HostArch()), debiantest.Package{Name: "tool", Version: "1", Data: "tool"})
	mirrors, err := debian.Named(server.URL + "/debian")
	must(t, err)
	mirrors.Security = nil
	for name, row := range map[string]struct {
		keys string
		ok   bool
	}{"the archive's keys": {server.Keys, true}, "other keys": {debiantest.New(t).Keys, false},
		"Debian's": {debian.Keys(Release), false}} {
		a := &debApt{arch: HostArch(), release: Release, state: filepath.Join(t.TempDir(), "a home [1]"), keys: row.keys}
		a.sources = a.ofRelease(mirrors)
		err := a.prepare(t.Context(), nil)
		if err == nil {
			_, err = a.resolve(t.Context(), []string{"tool"})
		}
		if (err == nil) != row.ok {
			t.Errorf("%s: %v", name, err)
		}
		st, err := os.Stat(filepath.Join(a.state, "sources.list"))
		must(t, err)
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", name, st.Mode())
		}
	}
}

// apt only warns of an index of another release, and the newer release's index is signed with the older one's keys,
// too. So a mirror could give an image the packages of another release.
func TestAttackAptRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("starts apt; not in -short")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("no apt-get on this machine")
	}
	for asked, other := range map[string]string{Bookworm: Release, Release: Bookworm} {
		server := debiantest.New(t)
		server.Add(t, other, string(HostArch()), debiantest.Package{Name: "tool", Version: "1", Data: "tool"})
		for at, text := range maps.Clone(server.Files) {
			server.Files[strings.Replace(at, "/dists/"+other, "/dists/"+asked, 1)] = text
		}
		mirrors, err := debian.Named(server.URL + "/debian")
		must(t, err)
		mirrors.Security = nil
		a := &debApt{arch: HostArch(), release: asked, state: t.TempDir(), keys: server.Keys}
		a.sources = a.ofRelease(mirrors)
		got := "taken"
		if err := a.prepare(t.Context(), nil); err != nil && strings.Contains(err.Error(), "got "+other) {
			got = "refused"
		}
		attack.Check(t, "a mirror has "+other+" in place of "+asked, "refused", got)
		server.Server.Close() // apt continues with the lists that it has
		if err := a.prepare(t.Context(), nil); err == nil {
			if list, err := a.resolve(t.Context(), []string{"tool"}); err == nil {
				got = fmt.Sprint("took ", list)
			}
		}
		attack.Check(t, "a mirror has "+other+" in place of "+asked+", and then fails", "refused", got)
	}
}
