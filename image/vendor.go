package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Prefixes of temporary folders beside the parts, which exist while the holder of the vendor lock fetches or installs
// something.
const (
	fetchPrefix  = ".fetch-"
	bundlePrefix = ".bundle-"
)

// lockVendor lets only one process at a time change the parts of an architecture. It removes what killed processes
// left
// behind.
func (ps Parts) lockVendor(ctx context.Context, arch Arch) (unlock func(), err error) {
	if unlock, err = ps.images.lock(ctx, "vendor-"+string(arch)); err != nil {
		return nil, err
	}
	for _, prefix := range []string{newPrefix, fetchPrefix, bundlePrefix} {
		for _, left := range glob(filepath.Join(ps.images.vendorDir(arch), prefix+"*")) {
			removeTree(left)
		}
	}
	return unlock, nil
}

// lacking returns the locked parts of an architecture, and those of its images that the store lacks. Parts of other
// images, and those that VendorNanos fetches, don't count.
func (ps Parts) lacking(arch Arch) (locked, missing []LockedPart, err error) {
	if locked, err = Lock(arch); err != nil {
		return nil, nil, err
	}
	wanted := ps.images.partsOf(Linux, arch)
	for _, p := range locked {
		if have, err := ps.Get(arch, p.Name); slices.Contains(wanted, p.Name) && (err != nil || !have.fits(p)) {
			missing = append(missing, p)
		}
	}
	return locked, missing, nil
}

// Vendor fetches every locked part of its images that the store lacks, checks it, and compiles the guest's own
// programs. It takes the bundle that was installed with the program first.
// Only Vendor, which Obtain calls, and VendorNanos use the network in this package.
func (ps Parts) Vendor(ctx context.Context, arch Arch) error {
	unlock, err := ps.lockVendor(ctx, arch)
	if err != nil {
		return err
	}
	defer unlock()
	locked, missing, err := ps.lacking(arch)
	if file := ps.installedBundle(arch); err == nil && len(missing) > 0 && file != "" {
		if _, err := ps.takeBundle(arch, file); err != nil {
			return fmt.Errorf("vendor %s: %w", arch, err)
		}
		locked, missing, err = ps.lacking(arch)
	}
	if err != nil {
		return err
	}
	var names []string
	var total, done int64
	for _, p := range missing {
		names, total = append(names, p.Name), total+p.Size
	}
	if len(missing) > 0 && ps.wantsBundle(arch) {
		if err := ps.vendorBundle(ctx, arch); err != nil {
			return fmt.Errorf("vendor %s: %w", arch, err)
		}
		for _, name := range ps.images.partsOf(Linux, arch) {
			if _, err := ps.Get(arch, name); err != nil {
				return fmt.Errorf(
					"the bundle for %s has no %s, which the %s image needs: "+
						"take one that has, by UNITASK_PARTS_URL or `unitask image vendor --from FILE`; "+
						"`unitask image vendor --image %[3]s --to FILE%[4]s` on a Debian machine writes one", arch, name,
					ps.images.Name(),
					bundleSuffix)
			}
		}
		return ps.ensureGuest(ctx, arch)
	}
	what := fmt.Sprintf("%d parts of the %s image for %s (%s), %s", len(names), ps.images.Name(), arch, some(names),
		mebibytes(total))
	if len(missing) > 0 {
		if err := ps.mayFetch(what, "`unitask image vendor --offline=false --image "+ps.images.Name()+" --arch "+string(arch)+
			"`"); err != nil {
			return err
		}
		ps.images.logf("fetching what is missing in %s, once: %s", ps.images.home, what)
	}
	packages, err := ps.debian(arch, locked)
	if err != nil {
		return fmt.Errorf("vendor %s: %w", arch, err)
	}
	if len(missing) > 0 {
		remove, err := ps.fetchAhead(ctx, packages, arch, missing, total)
		if err != nil {
			return fmt.Errorf("vendor %s: %w", arch, err)
		}
		defer remove()
	}
	for i, p := range missing {
		if p.From != "debian" {
			ps.images.logf("fetching %d of %d: %s %s, %s; %s of %s are here", i+1, len(missing), p.Name, p.Version,
				mebibytes(p.Size), mebibytes(done), mebibytes(total))
		}
		done += p.Size
		err := ps.addPart(arch, p.Name, func(dir string) (Part, error) { return ps.fetch(ctx, packages, p, dir) })
		if err != nil {
			return fmt.Errorf("vendor %s for %s: %w", p.Name, arch, err)
		}
	}
	return ps.ensureGuest(ctx, arch)
}

// fetchAhead fetches the packages of several parts at once, of total bytes, into a folder; remove removes it.
func (ps Parts) fetchAhead(ctx context.Context, packages *debParts, arch Arch, missing []LockedPart, total int64) (
	remove func(), err error) {
	if err := os.MkdirAll(ps.images.vendorDir(arch), 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(ps.images.vendorDir(arch), fetchPrefix)
	if err != nil {
		return nil, err
	}
	stop := follow(ps.images.Transfer, total, func() int64 { return bytesIn(dir) })
	err = packages.fetch(ctx, missing, dir)
	stop()
	if err != nil {
		removeTree(dir)
		return nil, err
	}
	return func() { removeTree(dir) }, nil
}

// mayFetch returns an error if the user has forbidden fetching.
func (ps Parts) mayFetch(what, command string) error {
	if ps.images.Offline == "" {
		return nil
	}
	return fmt.Errorf("%w (%s): %s would have to be fetched: %s does that", ErrOffline, ps.images.Offline, what, command)
}

// mebibytes formats a number of bytes for people.
func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func (ps Parts) fetch(ctx context.Context, packages *debParts, p LockedPart, dir string) (Part, error) {
	part := Part{Name: p.Name, Version: p.Version, Package: p.Package, Digest: p.Digest, From: p.From, License: p.License}
	down := filepath.Join(dir, ".download")
	if err := os.Mkdir(down, 0o755); err != nil {
		return part, err
	}
	defer os.RemoveAll(down)
	if p.From != "debian" {
		defer follow(ps.images.Transfer, p.Size, func() int64 { return bytesIn(down) })()
	}
	switch p.From {
	case "npm":
		file, err := npmDownload(ctx, p, down)
		if err != nil {
			return part, err
		}
		return part, unpackNpm(p.Name, file, dir)
	case "go":
		file, err := goDownload(ctx, p, down)
		if err != nil {
			return part, err
		}
		return part, ps.unpackGo(ctx, p, file, dir)
	case "debian":
		got, fetched := packages.got[p.Name]
		if !fetched {
			return part, fmt.Errorf("package %s was not fetched", p.Package)
		}
		if got.behind {
			taking := "taking " + got.pkg + " " + got.version
			if len(got.files) == 0 {
				taking = "this release has none"
			}
			ps.images.logf("%s %s is not in the archive; %s (vendor.lock is behind)", p.Package, p.Version, taking)
		}
		part.Package, part.Version, part.Digest, part.BehindLock = got.pkg, got.version, got.digest, got.behind
		part.Release = p.Release
		for _, file := range got.files {
			if err := unpackDeb(file, dir, debianFiles(p.Name, p.Arch)); err != nil {
				return part, err
			}
		}
		return part, nil
	}
	return part, fmt.Errorf("vendor.lock: unknown source %q", p.From)
}

// addPart fills a new folder and moves it to vendor/<arch>/<name>.
func (ps Parts) addPart(arch Arch, name string, fill func(dir string) (Part, error)) error {
	if err := os.MkdirAll(ps.images.vendorDir(arch), 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(ps.images.vendorDir(arch), newPrefix)
	if err != nil {
		return err
	}
	defer removeTree(tmp)
	part, err := fill(tmp)
	if err != nil {
		return err
	}
	if missing := ps.missing(Part{dir: tmp}, arch, name); missing != "" {
		return fmt.Errorf(
			"%s %s for %s holds no %s: is it a package of another distribution, or of a release that unitask does not know yet?",
			part.Package, part.Version, arch, missing)
	}
	part.Vendored = time.Now().UTC().Truncate(time.Second)
	text, err := json.MarshalIndent(part, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, partFile), append(text, '\n'), 0o644); err != nil {
		return err
	}
	dst := filepath.Join(ps.images.vendorDir(arch), name)
	old := tmp + ".old"
	if err := os.Rename(dst, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer removeTree(old)
	return os.Rename(tmp, dst)
}

// VendorFrom installs parts from a folder, a file, or a bundle's address. It understands bundles (WriteBundle), and the
// packages that vendor.lock names (.deb, .tgz, .zip). It also understands a Nanos release (its .tar.gz, or a folder
// with kernel.img, boot.img and klibs), and a vendor folder of another machine's store. It returns the names of the
// installed parts.
func (ps Parts) VendorFrom(ctx context.Context, arch Arch, from string) ([]string, error) {
	unlock, err := ps.lockVendor(ctx, arch)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if strings.HasPrefix(from, "https://") || strings.HasPrefix(from, "http://") {
		return ps.fetchBundle(ctx, arch, from)
	}
	st, err := os.Stat(from)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(from, bundleSuffix) {
		return ps.takeBundle(arch, from)
	}
	files := []string{from}
	if exists(filepath.Join(from, nanosKernel)) {
		if err := ps.addPart(arch, nanosPart, func(dir string) (Part,
			error) {
			return takeNanos(arch, from, dir)
		}); err != nil {
			return nil, fmt.Errorf("take %s: %w", from, err)
		}
		ps.images.logf("took %s from %s", nanosPart, from)
		return []string{nanosPart}, nil
	}
	if st.IsDir() {
		entries, err := os.ReadDir(from)
		if err != nil {
			return nil, err
		}
		files = nil
		for _, e := range entries {
			files = append(files, filepath.Join(from, e.Name()))
		}
	}
	var taken []string
	for _, file := range files {
		names, err := ps.takeFile(ctx, arch, file)
		if err != nil {
			return taken, err
		}
		for _, name := range names {
			ps.images.logf("took %s from %s", name, file)
			taken = append(taken, name)
		}
	}
	if len(taken) == 0 {
		return nil,
			fmt.Errorf(
				"%s holds no part that vendor.lock names for %s: "+
					"it wants a bundle (*.tar.zst), the locked .deb, .tgz and .zip packages, a Nanos release, "+
					"or a vendor/%s folder of another store", from, arch, arch)
	}
	return taken, nil
}

// takeFile imports one file or folder, and returns the names of its parts. It returns none for an unknown file.
func (ps Parts) takeFile(ctx context.Context, arch Arch, file string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(file, partFile)); err == nil {
		name, err := ps.takePartFolder(arch, file, false)
		return []string{name}, err
	}
	locked, err := Lock(arch)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(file) {
	case ".deb":
		sum, err := sha256File(file)
		if err != nil {
			return nil, err
		}
		return ps.takePackage(arch, locked, "sha256-"+sum, func(p LockedPart, dir string) error {
			return unpackDeb(file, dir, debianFiles(p.Name, arch))
		})
	case ".gz":
		return []string{nanosPart}, ps.takeRelease(arch, file)
	case ".zip":
		for _, p := range locked {
			if p.From == "go" && checkGoZip(p, file) == nil {
				return ps.takePackage(arch, locked, p.Digest, func(p LockedPart,
					dir string) error {
					return ps.unpackGo(ctx, p, file, dir)
				})
			}
		}
	case ".tgz":
		sum, err := integrity(file)
		if err != nil {
			return nil, err
		}
		return ps.takePackage(arch, locked, sum, func(p LockedPart, dir string) error { return unpackNpm(p.Name, file, dir) })
	}
	return nil, nil
}

// takePackage fills the parts of a package. Several may have the same one, such as libc and libmvec.
func (ps Parts) takePackage(arch Arch, locked []LockedPart, digest string,
	unpack func(LockedPart, string) error) (names []string, err error) {
	for _, p := range locked {
		if p.Digest != digest {
			continue
		}
		err := ps.addPart(arch, p.Name, func(dir string) (Part, error) {
			return Part{Name: p.Name, Version: p.Version, Package: p.Package, Digest: digest, From: "file", License: p.License},
				unpack(p, dir)
		})
		if err != nil {
			return names, err
		}
		names = append(names, p.Name)
	}
	return names, nil
}

// takeRelease imports a Nanos release's archive.
func (ps Parts) takeRelease(arch Arch, file string) error {
	sum, err := sha256File(file)
	if err != nil {
		return err
	}
	return ps.addPart(arch, nanosPart, func(dir string) (Part, error) {
		if err := unpackTgz(file, dir, nanosFiles); err != nil {
			return Part{}, err
		}
		part, err := describeNanos(arch, dir)
		part.Digest = "sha256-" + sum
		return part, err
	})
}

// takePartFolder copies one part of another store without changes.
func (ps Parts) takePartFolder(arch Arch, dir string, bundled bool) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, partFile))
	if err != nil {
		return "", err
	}
	var p Part
	if err := json.Unmarshal(text, &p); err != nil || !filepath.IsLocal(p.Name) || strings.Contains(p.Name, "/") ||
		p.Name != filepath.Base(dir) {
		return "", fmt.Errorf("%s is not a part's description", filepath.Join(dir, partFile))
	}
	return p.Name, ps.addPart(arch, p.Name, func(tmp string) (Part, error) {
		p.Bundled = p.Bundled || bundled
		return p, os.CopyFS(tmp, skipPartFile{os.DirFS(dir)})
	})
}

// skipPartFile hides part.json, which addPart writes itself.
type skipPartFile struct{ fs.FS }

func (f skipPartFile) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(f.FS, name)
	if name != "." {
		return entries, err
	}
	kept := entries[:0]
	for _, e := range entries {
		if e.Name() != partFile {
			kept = append(kept, e)
		}
	}
	return kept, err
}

// ReadLink and Lstat keep links as links in os.CopyFS.
func (f skipPartFile) ReadLink(name string) (string, error)   { return fs.ReadLink(f.FS, name) }
func (f skipPartFile) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(f.FS, name) }

// removeTree removes a tree that may hold folders without write permission.
func removeTree(dir string) { _ = os.RemoveAll(dir) }

// some returns the first names of a list, and the number of the others.
func some(names []string) string {
	const shown = 7
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}
