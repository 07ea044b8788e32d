package image

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

//go:embed vendor.lock
var lockText string

// Release is the codename of the Debian release that vendor.lock has packages of.
const Release = "trixie"

// LockedPart is one entry of vendor.lock.
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
}

// mayGo reports whether a release may lack a package for the part. A library may be missing: the packages that need its
// successor require that successor.
func (p LockedPart) mayGo() bool {
	return p.Dropped || strings.HasPrefix(p.Package, "lib") && len(p.Successors) == 0 && debianParts(p.Name, p.Arch) == nil
}

// Lock returns the parts that vendor.lock pins for one architecture.
func Lock(arch Arch) ([]LockedPart, error) {
	all, err := parseLock(lockText)
	if err != nil {
		return nil, err
	}
	var parts []LockedPart
	for _, p := range all {
		if p.Arch == arch {
			parts = append(parts, p)
		}
	}
	return parts, nil
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

func parseLock(text string) ([]LockedPart, error) {
	var lock struct {
		Part []LockedPart `toml:"part"`
	}
	meta, err := toml.Decode(text, &lock)
	if err != nil {
		return nil, fmt.Errorf("read vendor.lock: %w", err)
	}
	if extra := meta.Undecoded(); len(extra) > 0 {
		return nil, fmt.Errorf("read vendor.lock: unknown key %s", extra[0])
	}
	for _, p := range lock.Part {
		if p.Name == "" || p.Version == "" || p.License == "" || (p.Arch != AMD64 && p.Arch != ARM64) ||
			(p.From != "release") != (p.Size > 0) || (p.From == "debian") != (p.Path != "") {
			return nil, fmt.Errorf("read vendor.lock: incomplete part %+v", p)
		}
	}
	return lock.Part, nil
}
