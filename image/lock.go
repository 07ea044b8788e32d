package image

import (
	"cmp"
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

//go:embed vendor.lock
var lockText string

//go:embed vendor-bookworm.lock
var bookwormText string

// Codenames of Debian's releases: of the packages of vendor.lock, and of those of images with older versions.
const (
	Release  = "trixie"
	Bookworm = "bookworm"
)

// LockFile is a list of parts in this package's folder. All its packages of Debian are of one release.
type LockFile struct{ Name, Release, text string }

// LockFiles returns all lists, vendor.lock first.
func LockFiles() []LockFile {
	return []LockFile{{"vendor.lock", Release, lockText}, {"vendor-bookworm.lock", Bookworm, bookwormText}}
}

// PartOf returns the name of a release's part: libc of Release, libc@bookworm of another one. So the parts of two
// releases never mix: not in a store, a bundle or an image.
func PartOf(release, name string) string {
	if release == Release {
		return name
	}
	return name + "@" + release
}

// plainPart returns the name that a part has in its lock file, and its release.
func plainPart(part string) (name, release string) {
	name, release, _ = strings.Cut(part, "@")
	return name, cmp.Or(release, Release)
}

// LockedPart is one entry of a lock file.
type LockedPart struct {
	Name    string `toml:"name"`
	Arch    Arch   `toml:"arch"`
	From    string `toml:"from"` // npm, debian, go or release
	Package string `toml:"package"`
	// debian: metapackages that lead to a newer Package, one for each distribution. The first in the archive is used.
	Successors []string `toml:"successors"`
	// debian: other releases have no such package; its contents moved to other packages or are gone.
	Dropped bool   `toml:"dropped"`
	Version string `toml:"version"`
	Path    string `toml:"path"`   // debian: below the archive's address
	URL     string `toml:"url"`    // release: the archive; its .md5 is beside it
	MD5URL  string `toml:"md5url"` // release
	Digest  string `toml:"digest"` // sha512-BASE64, sha256-HEX or go.sum's h1:BASE64; "" while unknown
	Size    int64  `toml:"size"`   // bytes to download; 0 for a release
	License string `toml:"license"`
	Release string `toml:"-"` // the lock file's; Name is that of PartOf
}

// mayGo reports whether a release may lack a package for the part. A library may be missing: the packages that need its
// successor require that successor.
func (p LockedPart) mayGo() bool {
	return p.Dropped || strings.HasPrefix(p.Package, "lib") && len(p.Successors) == 0 && debianParts(p.Name, p.Arch) == nil
}

// allLocked returns the parts of all lock files. It parses them once, since a list of images asks for many versions.
var allLocked = sync.OnceValues(func() (all []LockedPart, err error) {
	for _, file := range LockFiles() {
		parts, err := file.parse()
		if err != nil {
			return nil, err
		}
		all = append(all, parts...)
	}
	return all, nil
})

// Lock returns the parts that the lock files pin for one architecture.
func Lock(arch Arch) (parts []LockedPart, err error) {
	all, err := allLocked()
	for _, p := range all {
		if p.Arch == arch {
			parts = append(parts, p)
		}
	}
	return parts, err
}

//go:embed bundles.lock
var bundlesText string

// LockedBundle is the address of a release's bundle of parts (bundle.go).
type LockedBundle struct {
	Arch   Arch   `toml:"arch"`
	URL    string `toml:"url"`
	Digest string `toml:"digest"` // sha256-HEX
}

// lockedBundle returns an architecture's bundle of this release, or of the release that this program is based on. Its
// URL is "" if there is none.
func lockedBundle(arch Arch) (LockedBundle, error) {
	var lock struct {
		Bundle []LockedBundle `toml:"bundle"`
	}
	if _, err := toml.Decode(bundlesText, &lock); err != nil {
		return LockedBundle{}, fmt.Errorf("read bundles.lock: %w", err)
	}
	for _, b := range lock.Bundle {
		if b.Arch == arch {
			return b, nil
		}
	}
	return LockedBundle{}, nil
}

func (f LockFile) parse() ([]LockedPart, error) {
	var lock struct {
		Part []LockedPart `toml:"part"`
	}
	meta, err := toml.Decode(f.text, &lock)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name, err)
	}
	if extra := meta.Undecoded(); len(extra) > 0 {
		return nil, fmt.Errorf("read %s: unknown key %s", f.Name, extra[0])
	}
	for i := range lock.Part {
		p := &lock.Part[i]
		if p.Name == "" || p.Version == "" || p.License == "" || (p.Arch != AMD64 && p.Arch != ARM64) ||
			(p.From != "release") != (p.Size > 0) || (p.From == "debian") != (p.Path != "") ||
			p.From != "debian" && f.Release != Release || strings.Contains(p.Name, "@") {
			return nil, fmt.Errorf("read %s: incomplete or misplaced part %+v", f.Name, *p)
		}
		p.Name, p.Release = PartOf(f.Release, p.Name), f.Release
	}
	return lock.Part, nil
}
