package image

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/image/debian/debiantest"
)

// The lock of an older release has only its packages, and their parts have names of their own.
func TestOlderLock(t *testing.T) {
	locked, err := Lock(HostArch())
	must(t, err)
	of := map[string]int{}
	for _, p := range locked {
		of[p.Release]++
		name, release := plainPart(p.Name)
		if release != p.Release || PartOf(release, name) != p.Name || p.Release == "" ||
			p.Release != Release && p.From != "debian" {
			t.Errorf("%s of %s is from %s", p.Name, p.Release, p.From)
		}
	}
	if len(of) != 2 || of[Release] < 100 || of[Bookworm] < 100 {
		t.Errorf("%v", of)
	}
	const npm = "[[part]]\nname='x'\narch='amd64'\nfrom='npm'\nsize=1\nversion='1'\nlicense='MIT'\n"
	debian := strings.Replace(npm, "'npm'", "'debian'", 1) + "path='pool/x'\n"
	for name, row := range map[string]struct {
		file LockFile
		ok   bool
	}{
		"a package":                  {LockFile{"a.lock", Bookworm, debian}, true},
		"a package of npm":           {LockFile{"a.lock", Bookworm, npm}, false},
		"the same in the main lock":  {LockFile{"a.lock", Release, npm}, true},
		"a name with a release":      {LockFile{"a.lock", Release, strings.Replace(debian, "'x'", "'x@bookworm'", 1)}, false},
		"a release in the lock file": {LockFile{"a.lock", Bookworm, debian + "release='trixie'\n"}, false},
	} {
		if _, err := row.file.parse(); (err == nil) != row.ok || err != nil && !strings.Contains(err.Error(), "a.lock") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// olderStore returns a store with the parts of the current release, for images of an older one.
func olderStore(t *testing.T) *Store {
	t.Helper()
	s := fakeStore(t)
	older := s.payload
	older.Name, older.Parts = "node@1", nil
	for _, part := range []string{"tool", "libc", "libstdc++", "libgcc"} {
		older.Parts = append(older.Parts, PartOf(Bookworm, part))
	}
	s.payloads = append(s.payloads, older)
	of, err := s.Of("node@1")
	must(t, err)
	return of
}

// putOlder adds a part of the older release.
func putOlder(t *testing.T, s *Store, name string, files ...string) {
	t.Helper()
	must(t, s.Parts().addPart(HostArch(), name, func(dir string) (Part, error) {
		for _, f := range files {
			must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, f), []byte(f), 0o755))
		}
		return Part{Name: name, Version: "2.36", Digest: name, From: "debian", Release: Bookworm}, nil
	}))
}

// A home with the parts of one release lacks those of the other: no image takes one for another.
func TestPartsOfReleases(t *testing.T) {
	s := olderStore(t)
	current, err := s.Of("node")
	must(t, err)
	before, err := current.Digest(Linux, HostArch())
	must(t, err)
	_, err = s.Digest(Linux, HostArch())
	if !errors.Is(err, ErrNotVendored) || !strings.Contains(err.Error(), "@bookworm") ||
		!strings.Contains(err.Error(), "unitask image vendor --image node@1 ") {
		t.Errorf("with the other release's parts alone: %v", err)
	}
	for _, part := range []string{"libc", "libstdc++", "libgcc"} {
		var files []string
		for _, w := range debianParts(PartOf(Bookworm, part), HostArch()) {
			files = append(files, w.dst+strings.ReplaceAll(filepath.Base(w.pattern), "*", "x"))
		}
		if len(files) == 0 {
			t.Fatalf("%s has no files of its own", part)
		}
		putOlder(t, s, PartOf(Bookworm, part), files...)
	}
	putOlder(t, s, PartOf(Bookworm, "tool"), "node")
	older, err := s.Digest(Linux, HostArch())
	must(t, err)
	if after, err := current.Digest(Linux, HostArch()); err != nil || after != before || older == before {
		t.Errorf("the current image is %s, then %s; the older one is %s; %v", before, after, older, err)
	}
	lost := filepath.Join(s.vendorDir(HostArch()), "libc@bookworm")
	must(t, os.RemoveAll(filepath.Join(lost, "root")))
	if _, err := s.Digest(Linux, HostArch()); !errors.Is(err, ErrNotVendored) ||
		!strings.Contains(err.Error(), "libc@bookworm") {
		t.Errorf("half a part: %v", err)
	}
	must(t, os.RemoveAll(lost))
	if _, err := s.Digest(Linux, HostArch()); !errors.Is(err, ErrNotVendored) {
		t.Errorf("a lost part: %v", err)
	}
	if got, err := current.Digest(Linux, HostArch()); err != nil || got != before {
		t.Errorf("the current image is %s, %v", got, err)
	}
}

// Without a mirror the older parts can't be had, and the error says what helps. The current image is not touched.
func TestOlderOffline(t *testing.T) {
	s := olderStore(t)
	s.Offline = "UNITASK_OFFLINE=1"
	if err := s.Parts().Vendor(t.Context(), HostArch()); !errors.Is(err, ErrOffline) ||
		!strings.Contains(err.Error(), "unitask image vendor --offline=false --image node@1") {
		t.Errorf("offline: %v", err)
	}
	s.Offline, s.Mirror = "", "http://127.0.0.1:1/debian"
	if err := s.Parts().Vendor(t.Context(), HostArch()); err == nil ||
		!strings.Contains(err.Error(), "name another mirror of Debian") {
		t.Errorf("a mirror that is down: %v", err)
	}
	current, err := s.Of("node")
	must(t, err)
	if _, err := current.Digest(Linux, HostArch()); err != nil {
		t.Error(err)
	}
}

// The successor of an older release's package comes from the index of that release.
func TestOlderSuccessor(t *testing.T) {
	server, arch := debiantest.New(t), string(HostArch())
	server.Add(t, Release, arch, debiantest.Package{Name: "tool", Version: "9", Data: "tool 9"})
	server.Add(t, Bookworm, arch, debiantest.Package{Name: "tool", Version: "2", Data: "tool 2"})
	old := lockedDeb(PartOf(Bookworm, "tool"), "tool", "1", "tool 1")
	old.Release = Bookworm
	d, _ := partsOf(t, server, []LockedPart{old})
	for _, keys := range []string{"", server.Keys} {
		d.archives[Bookworm].Keys = keys
		err := d.fetch(t.Context(), []LockedPart{old}, t.TempDir())
		got, signed := d.got[old.Name], keys != ""
		if (err == nil) != signed || signed && (got.version != "2" || !got.behind) {
			t.Errorf("signed %v: %v, %+v", signed, err, got)
		}
	}
}

// A package that was brought by hand fills each part of it.
func TestTakePackage(t *testing.T) {
	s := olderStore(t)
	var locked []LockedPart
	for name, digest := range map[string]string{"a": "sha256-1", "a@bookworm": "sha256-1", "b": "sha256-2"} {
		locked = append(locked, LockedPart{Name: name, Arch: HostArch(), From: "debian", Version: "1", Digest: digest})
	}
	unpack := func(p LockedPart, dir string) error { return os.WriteFile(filepath.Join(dir, p.Name), nil, 0o600) }
	names, err := s.Parts().takePackage(HostArch(), locked, "sha256-1", unpack)
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{"a", "a@bookworm"}) {
		t.Fatalf("%q %v", names, err)
	}
	for _, name := range names {
		p, err := s.Parts().Get(HostArch(), name)
		if _, e := os.Stat(p.path(name)); err != nil || e != nil || p.Digest != "sha256-1" {
			t.Errorf("%+v %v %v", p, err, e)
		}
	}
	if names, err := s.Parts().takePackage(HostArch(), locked, "sha256-3", unpack); err != nil || len(names) > 0 {
		t.Errorf("an unknown package: %q %v", names, err)
	}
}
