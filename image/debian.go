package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/unitask/unitask/image/debian"
	"github.com/unitask/unitask/internal/home"
)

// takeBundle is the advice to the user if the archive lacks a part.
const takeBundle = "take a bundle of the parts, `unitask image vendor --from FILE` or UNITASK_PARTS_URL"

// debParts fetches the parts of images that are packages of Debian.
type debParts struct {
	archives map[string]*debian.Archive // by release
	locked   []LockedPart
	logf     func(format string, args ...any)
	// together reports whether every image with one part has another part, too, by the packages of vendor.lock.
	together func(part, other string) bool
	got      map[string]debs // by part
}

// debs are the fetched packages of one part.
type debs struct {
	files   []string
	pkg     string
	version string
	digest  string // sha256-HEX; of the packages' digests unless there is exactly one package
	behind  bool   // the pinned package is gone; these are its successors
}

// debian returns the parts of an architecture that are packages.
func (ps Parts) debian(arch Arch, locked []LockedPart) (*debParts, error) {
	mirrors, err := ps.mirrors()
	if err != nil {
		return nil, err
	}
	archives := map[string]*debian.Archive{}
	for _, file := range LockFiles() {
		archives[file.Release] = &debian.Archive{Mirrors: mirrors, Suite: file.Release, Arch: string(arch),
			Logf: ps.images.logf, Cache: filepath.Join(home.Dir(ps.images.home).Cache(), "debian")}
	}
	return &debParts{locked: locked, logf: ps.images.logf, got: map[string]debs{}, archives: archives,
		together: func(part, other string) bool { return ps.together(arch, part, other) }}, nil
}

// mirrors returns the mirrors of Debian that the user or else the host's apt names.
func (ps Parts) mirrors() (debian.Mirrors, error) {
	if ps.images.Mirror == "" {
		return debian.OfHost(), nil
	}
	named, err := debian.Named(ps.images.Mirror)
	if err != nil {
		err = fmt.Errorf("debianMirror or UNITASK_DEBIAN_MIRROR: %w", err)
	}
	return named, err
}

// together reports whether every image that has one part also has the other.
func (ps Parts) together(arch Arch, part, other string) bool {
	for _, of := range ps.each() {
		if parts := of.partsOf(Linux, arch); slices.Contains(parts, part) && !slices.Contains(parts, other) {
			return false
		}
	}
	return true
}

// transfers is the number of packages that are fetched at the same time.
const transfers = 6

// fetch fetches the packages of several parts into a folder. If the archive no longer has a pinned package, fetch takes
// the successor by the archive's signed index. Parts that are not Debian packages are left out.
func (d *debParts) fetch(ctx context.Context, parts []LockedPart, dir string) error {
	var mu sync.Mutex
	var gone []LockedPart
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(transfers)
	for _, p := range parts {
		if p.From != "debian" {
			continue
		}
		group.Go(func() error {
			to := filepath.Join(dir, p.Name+".deb")
			f := debian.File{Path: p.Path, SHA256: strings.TrimPrefix(p.Digest, "sha256-"), Size: p.Size}
			err := d.archives[p.Release].Fetch(inner, f, to)
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, debian.ErrGone) {
				gone = append(gone, p)
				return nil
			}
			d.got[p.Name] = debs{files: []string{to}, pkg: p.Package, version: p.Version, digest: p.Digest}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return cmp.Or(context.Cause(ctx), advised(err))
	}
	for _, p := range gone {
		got, err := d.successors(ctx, p, dir)
		if err != nil {
			return cmp.Or(context.Cause(ctx), advised(err))
		}
		d.got[p.Name] = got
	}
	return nil
}

// advised adds what a user can do if the archive does not help.
func advised(err error) error {
	var local *debian.HostError
	if errors.As(err, &local) { // no other source helps
		return err
	}
	return fmt.Errorf("%w; name another mirror of Debian (debianMirror in config.toml, or UNITASK_DEBIAN_MIRROR), or %s",
		err, takeBundle)
}

// successors fetches the packages that the archive has for a part whose pinned package is gone.
func (d *debParts) successors(ctx context.Context, p LockedPart, dir string) (debs, error) {
	archive := d.archives[p.Release]
	index, err := archive.Index(ctx)
	if err != nil {
		return debs{}, err
	}
	names, err := d.packages(index, p)
	if err != nil {
		return debs{}, err
	}
	got := debs{version: gone, behind: true}
	var digests []string
	for _, name := range names {
		if err := notOlder(p, index.Packages[name]); err != nil {
			return debs{}, err
		}
		file := filepath.Join(dir, p.Name+"+"+name+".deb")
		if err := archive.Fetch(ctx, index.Packages[name].File, file); err != nil {
			return debs{}, err
		}
		got.files, digests = append(got.files, file), append(digests, index.Packages[name].SHA256)
	}
	if len(names) > 0 {
		got.pkg, got.version = names[0], index.Packages[names[0]].Version
	}
	if len(digests) == 1 {
		got.digest = "sha256-" + digests[0]
		got.behind = got.digest != p.Digest // it may have moved within the archive
	} else {
		sum := sha256.Sum256([]byte(strings.Join(digests, "\n")))
		got.digest = "sha256-" + hex.EncodeToString(sum[:])
	}
	return got, nil
}

// notOlder returns an error if the mirror's package is older than the pinned one. Old indexes stay signed. So an
// outdated mirror, or an attacker on the way to it, could bring back fixed bugs.
func notOlder(p LockedPart, pkg debian.Package) error {
	if (p.Package == pkg.Name || p.Name == kernelPart) && debian.Newer(p.Version, pkg.Version) {
		return fmt.Errorf("the mirror's %s %s is older than %s of vendor.lock: is the mirror behind, or without security "+
			"updates?", pkg.Name, pkg.Version, p.Version)
	}
	return nil
}

// gone is the version of a part that this archive's release lacks and that only other parts' requirements replace.
const gone = "none"

// packages returns the packages of the archive for a part: its successor with its requirements. Requirements that are
// other parts of all its images are left out.
func (d *debParts) packages(index *debian.Index, p LockedPart) ([]string, error) {
	if p.Name == kernelPart {
		return index.Kernel(p.Successors)
	}
	name := index.Successor(p.Package, p.Successors)
	switch {
	case name == "" && p.mayGo():
		return nil, nil
	case name == "":
		return nil, fmt.Errorf("the release %s has no %s", p.Release, p.Package)
	case strings.HasSuffix(p.Package, "-dev") || debianParts(p.Name, p.Arch) != nil: // only some files of it are used
		return []string{name}, nil
	}
	others := map[string]bool{}
	for _, l := range d.locked {
		if l.From == "debian" && d.together(p.Name, l.Name) {
			others[index.Successor(l.Package, l.Successors)] = true
		}
	}
	return index.Closure(name, func(n string) bool { return others[n] })
}

// upstream returns a package's version without the distribution's revision.
func upstream(version string) string {
	version, _, _ = strings.Cut(version, "-")
	return version
}
