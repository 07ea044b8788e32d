package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/home"
)

// debian fetches packages with apt's own client, from the sources that the host is configured with, into lists and
// caches of unitask's own. Nothing is installed, and the host need not know the architecture.
type debian struct {
	arch  Arch
	state string // folder for apt's lists
	fresh bool   // this process has updated the lists
	said  string // apt's messages about what it could not fetch, each after "; "
	unreadSources
	ahead string // a folder of packages that were fetched together, or ""

	logf func(format string, args ...any)
	// together reports whether every image with one part has another part, too, by the packages of vendor.lock.
	together func(part, other string) bool
	locked   []LockedPart
	has      map[string][]string // versions of vendor.lock's packages that the archive has
	index    *aptIndex           // of the archive, nil until needed
}

// apt returns a client for an architecture's packages.
func (ps Parts) apt(arch Arch, locked []LockedPart) *debian {
	return &debian{arch: arch, state: filepath.Join(home.Dir(ps.images.home).Cache(), "apt-"+string(arch)), locked: locked, logf: ps.images.logf, together: func(part, other string) bool { return ps.together(arch, part, other) }}
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

// ofOneRelease extends the list of missing parts if one of them comes from another release than vendor.lock's. It
// then
// adds the image's parts that are here from a different release: programs don't run on an older libc.
func (ps Parts) ofOneRelease(ctx context.Context, apt *debian, missing []LockedPart, wanted []string) ([]LockedPart, error) {
	libc, err := ps.Get(apt.arch, libcPart)
	if err != nil { // none is installed
		return missing, nil
	}
	moved := false
	for _, p := range missing {
		if p.From != "debian" || p.Name == kernelPart || p.Name == certificatesPart {
			continue
		}
		pinned, err := apt.pinned(ctx, p)
		if err != nil {
			return nil, err
		}
		moved = moved || !pinned
	}
	if !moved {
		return missing, nil
	}
	index, err := apt.archive(ctx)
	if err != nil {
		return nil, err
	}
	if upstream(libc.Version) == upstream(index.packages[libc.Package].version) {
		return missing, nil
	}
	for _, p := range apt.locked {
		again := slices.Contains(wanted, p.Name) && p.From == "debian" && p.Name != kernelPart
		if again && !slices.ContainsFunc(missing, func(m LockedPart) bool { return m.Name == p.Name }) {
			missing = append(missing, p)
		}
	}
	ps.images.logf("the parts that are here are of another release (libc %s): fetching them again", libc.Version)
	return missing, nil
}

// upstream returns a package's version without the distribution's revision.
func upstream(version string) string {
	version, _, _ = strings.Cut(version, "-")
	return version
}

func (d *debian) options() []string {
	return []string{
		"-q",
		"-o", "Dir::State=" + d.state,
		"-o", "Dir::State::status=" + filepath.Join(d.state, "status"),
		"-o", "Dir::Cache=" + filepath.Join(d.state, "cache"),
		"-o", "APT::Architecture=" + string(d.arch),
		"-o", "APT::Architectures=" + string(d.arch),
		"-o", "APT::Sandbox::User=root",
		"-o", "Debug::NoLocking=1",
		"-o", "Acquire::Languages=none",
		"-o", "Acquire::Retries=3",
	}
}

func (d *debian) run(ctx context.Context, dir, tool string, args ...string) ([]byte, error) {
	out, _, err := d.runs(ctx, dir, tool, args...)
	return out, err
}

// runs is like run, but also returns the tool's standard error.
func (d *debian) runs(ctx context.Context, dir, tool string, args ...string) (output []byte, said string, err error) {
	cmd := exec.CommandContext(ctx, tool, append(d.options(), args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, "", fmt.Errorf("%s is not on this machine: the parts come from Debian's packages; bring them by hand with `unitask image vendor --from DIR`", tool)
		}
		return nil, "", fmt.Errorf("%s %s: %w: %s", tool, bounded.Said(strings.Join(args, " "), maxAptError), err, lastLine(errs.String()))
	}
	return out.Bytes(), errs.String(), nil
}

func (d *debian) update(ctx context.Context) error {
	if d.fresh {
		return nil
	}
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(d.state, sub), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(d.state, "status"), nil, 0o644); err != nil {
		return err
	}
	_, errs, err := d.runs(ctx, d.state, "apt-get", "update") // which reports a source that does not answer as a warning
	if err != nil {
		return err
	}
	d.fresh, d.said, d.failed = true, notFetched(errs), failedAddresses(errs)
	return nil
}

// debs are the downloaded packages of one part.
type debs struct {
	files   []string
	pkg     string
	version string
	digest  string // sha256-HEX; of the packages' digests unless there is exactly one package
	behind  bool   // the pinned package is gone; these are its successors
}

// pinned reports whether the archive has the package of vendor.lock in the pinned version.
func (d *debian) pinned(ctx context.Context, p LockedPart) (bool, error) {
	if err := d.update(ctx); err != nil {
		return false, err
	}
	if d.has == nil {
		args := []string{"madison"}
		for _, l := range d.locked {
			if l.From == "debian" {
				args = append(args, l.Package)
			}
		}
		out, err := d.run(ctx, d.state, "apt-cache", args...)
		if err != nil {
			return false, err
		}
		d.has = map[string][]string{}
		for line := range strings.Lines(string(out)) {
			if words := strings.Split(line, "|"); len(words) == 3 { // NAME | VERSION | SOURCE
				name := strings.TrimSpace(words[0])
				d.has[name] = append(d.has[name], strings.TrimSpace(words[1]))
			}
		}
	}
	return slices.Contains(d.has[p.Package], p.Version), nil
}

// archive returns the index of the available packages.
func (d *debian) archive(ctx context.Context) (*aptIndex, error) {
	if err := d.update(ctx); err != nil || d.index != nil {
		return d.index, err
	}
	out, err := d.run(ctx, d.state, "apt-cache", "dumpavail")
	if err == nil {
		d.index, err = parseIndex(bytes.NewReader(out))
	}
	if err == nil && len(d.index.packages) == 0 {
		d.index, err = nil, d.unread()
	}
	return d.index, err
}

// packages returns the packages for a part on this host: the pinned one, or, if the archive has a newer version or
// another release, its successor with its requirements. Requirements that are other parts of all its images are left
// out.
func (d *debian) packages(ctx context.Context, p LockedPart) (names []string, behind bool, err error) {
	names, behind, err = d.found(ctx, p)
	if len(names) == 0 && d.said != "" && ctx.Err() == nil {
		err = d.notSeen(ctx, p, err)
	}
	return names, behind, err
}

func (d *debian) found(ctx context.Context, p LockedPart) (names []string, behind bool, err error) {
	if pinned, err := d.pinned(ctx, p); err != nil || pinned {
		return []string{p.Package}, false, err
	}
	if p.Name == kernelPart {
		names, err = d.kernelPackages(ctx, p.Successors)
		return names, true, err
	}
	index, err := d.archive(ctx)
	if err != nil {
		return nil, true, err
	}
	name := index.successor(p)
	switch {
	case name == "" && p.mayGo():
		return nil, true, nil
	case name == "":
		return nil, true, fmt.Errorf("this host's package sources have no %s: %s", p.Package, takeBundle)
	case strings.HasSuffix(p.Package, "-dev") || debianParts(p.Name, p.Arch) != nil: // only some files of it are used
		return []string{name}, true, nil
	}
	others := map[string]bool{}
	for _, l := range d.locked {
		if l.From == "debian" && d.together(p.Name, l.Name) {
			others[index.successor(l)] = true
		}
	}
	if names, err = index.closure(name, func(n string) bool { return others[n] }); err != nil {
		err = fmt.Errorf("%w: %s", err, takeBundle)
	}
	return names, true, err
}

// fetchAhead fetches the packages of several parts at once, for download to find. This takes a fraction of the time.
// Packages that can't be fetched this way are fetched one by one.
func (d *debian) fetchAhead(ctx context.Context, parts []LockedPart, dir string) error {
	args := []string{"download"}
	for _, p := range parts {
		if p.From != "debian" {
			continue
		}
		names, behind, err := d.packages(ctx, p)
		if err != nil {
			return ctx.Err() // the single fetch reports the error
		}
		if !behind {
			names = []string{p.Package + "=" + p.Version}
		}
		args = append(args, names...)
	}
	d.ahead = dir
	slices.Sort(args[1:])
	_, _ = d.run(ctx, dir, "apt-get", slices.Compact(args)...)
	return ctx.Err()
}

// download returns a part's packages, fetched ahead or now into dir. apt has checked them against the archive's
// signed
// index.
func (d *debian) download(ctx context.Context, p LockedPart, dir string) (debs, error) {
	names, behind, err := d.packages(ctx, p)
	if err != nil {
		return debs{}, err
	}
	if len(names) == 0 && d.said != "" {
		d.logf("%s is taken for gone: the distribution's own sources have it not, and others can't be read: %s", p.Package, d.unreadWhy())
	}
	got := debs{pkg: p.Package, version: p.Version, behind: behind}
	var digests []string
	for _, name := range names {
		file := d.fetched(name)
		if file == "" {
			want := name
			if !behind {
				want += "=" + p.Version
			}
			if _, err := d.run(ctx, dir, "apt-get", "download", want); err != nil {
				return debs{}, err
			}
			files := glob(filepath.Join(dir, name+"_*.deb"))
			if len(files) != 1 {
				return debs{}, fmt.Errorf("apt-get download %s left %d packages", name, len(files))
			}
			file = files[0]
		}
		sum, err := sha256File(file)
		if err != nil {
			return debs{}, err
		}
		got.files, digests = append(got.files, file), append(digests, sum)
	}
	if len(digests) == 1 {
		got.digest = "sha256-" + digests[0]
	} else {
		sum := sha256.Sum256([]byte(strings.Join(digests, "\n")))
		got.digest = "sha256-" + hex.EncodeToString(sum[:])
	}
	switch {
	case !behind && got.digest != p.Digest:
		return debs{}, fmt.Errorf("%s %s has digest %s, vendor.lock says %s", p.Package, p.Version, got.digest, p.Digest)
	case len(names) == 0:
		got.pkg, got.version = "", gone
	case behind:
		got.pkg = names[0]
		got.version, err = debVersion(got.files[0])
	}
	return got, err
}

// gone is the version of a part that this archive's release lacks and that only other parts' requirements replace.
const gone = "none"

// isAhead reports whether a part's packages were fetched ahead.
func (d *debian) isAhead(ctx context.Context, p LockedPart) bool {
	if p.From != "debian" || d.ahead == "" {
		return false
	}
	names, _, err := d.packages(ctx, p)
	return err == nil && !slices.ContainsFunc(names, func(name string) bool { return d.fetched(name) == "" })
}

// fetched returns the file of a package that was fetched ahead, or "".
func (d *debian) fetched(name string) string {
	if d.ahead == "" {
		return ""
	}
	if files := glob(filepath.Join(d.ahead, name+"_*.deb")); len(files) == 1 {
		return files[0]
	}
	return ""
}

// debVersion returns the version in apt's name for a package's file, NAME_VERSION_ARCH.deb, in which %3a is a colon.
func debVersion(file string) (string, error) {
	words := strings.Split(filepath.Base(file), "_")
	if len(words) != 3 {
		return "", fmt.Errorf("read version of %s: it is not named as apt names packages", filepath.Base(file))
	}
	return url.PathUnescape(words[1])
}

// kernelDependency matches packages that may contain a kernel's files. Until Debian 13 these are in
// linux-image-VERSION, which later leads to one package with the kernel and one with its modules.
var kernelDependency = regexp.MustCompile(`\blinux-(?:image|binary|modules)-[0-9][^\s,)]*`)

// kernelDepth is the number of steps from the metapackage to the kernel's files.
const kernelDepth = 2

// kernelPackages returns the kernel package of the first metapackage that the archive has, and the packages that the
// kernel package leads to.
func (d *debian) kernelPackages(ctx context.Context, metas []string) ([]string, error) {
	var none []error
	for _, meta := range metas {
		found, err := d.leadsTo(ctx, meta)
		if len(found) > 0 || ctx.Err() != nil {
			return found, ctx.Err()
		}
		none = append(none, err)
	}
	return nil, fmt.Errorf("%s lead to no kernel package here; %s: %w", strings.Join(metas, " and "), takeBundle, errors.Join(none...))
}

func (d *debian) leadsTo(ctx context.Context, meta string) (found []string, err error) {
	todo := []string{meta}
	for range kernelDepth {
		var next []string
		for _, pkg := range todo {
			out, err := d.run(ctx, d.state, "apt-cache", "show", "--no-all-versions", pkg)
			if err != nil {
				return nil, err
			}
			for _, name := range dependencies(string(out)) {
				if !slices.Contains(found, name) {
					found, next = append(found, name), append(next, name)
				}
			}
		}
		todo = next
	}
	if len(found) == 0 {
		err = fmt.Errorf("package %s leads to no kernel package", meta)
	}
	return found, err
}

// dependencies returns the kernel packages that a package's description requires.
func dependencies(description string) (found []string) {
	for line := range strings.Lines(description) {
		if depends, ok := strings.CutPrefix(line, "Depends:"); ok {
			found = append(found, kernelDependency.FindAllString(depends, -1)...)
		}
	}
	return found
}

// wanted names files of a package. The folders in pattern are those of Debian 12; later releases have the same files
// below usr.
type wanted struct {
	pattern string
	dst     string // in the part; a trailing slash means a folder for files that keep their names
}

// debianParts returns the files to extract from each Debian part. All of them must exist.
func debianParts(part string, arch Arch) []wanted {
	lib := "lib/" + arch.triplet() + "/"
	switch part {
	case libcPart:
		return inRoot(arch.loader(), lib+"ld-linux-*", lib+"libc.so.6", lib+"libm.so.6", lib+"libdl.so.2", lib+"libpthread.so.0",
			lib+"librt.so.1", lib+"libresolv.so.2", lib+"libutil.so.1", lib+"libnsl.so.1", lib+"libanl.so.1")
	case "libstdc++":
		return inRoot("usr/"+lib+"libstdc++.so.6", "usr/"+lib+"libstdc++.so.6.*")
	case "libmvec": // of libc's package, on architectures that have it
		return inRoot(lib + "libmvec.so.1")
	case "libgcc":
		return inRoot(lib + "libgcc_s.so.1")
	case "busybox":
		return inRoot("bin/busybox")
	case certificatesPart:
		return []wanted{{"usr/share/ca-certificates/mozilla/*.crt", "certs/"}}
	case PipTool:
		return []wanted{{"usr/share/python-wheels/pip-*.whl", toolFiles[PipTool]}}
	case kernelPart:
		return []wanted{{"boot/vmlinuz-*", "vmlinuz"}, {"lib/modules/*/vmlinuz", "vmlinuz"}} // since Debian 14
	}
	return nil
}

// inRoot returns files that go to the same path in the guest's root filesystem.
func inRoot(patterns ...string) []wanted {
	var list []wanted
	for _, p := range patterns {
		list = append(list, wanted{p, "root/" + path.Dir(p) + "/"})
	}
	return list
}

// debianFiles selects the files of a Debian part.
func debianFiles(part string, arch Arch) selector {
	files := debianParts(part, arch)
	if files == nil {
		return func(name string) (string, bool) {
			dst, ok := wholePackage(name)
			if strings.HasPrefix(dst, "include/") && !strings.HasSuffix(part, "-dev") {
				return "", false // a link of numpy's
			}
			if part == "util-linux" && (strings.HasPrefix(dst, "root/usr/sbin/") || dst == "root/usr/bin/su") {
				return "", false // for root or other users, which a guest does not have
			}
			return dst, ok
		}
	}
	return func(name string) (string, bool) {
		merged, base := strings.TrimPrefix(name, "usr/"), path.Base(name)
		for _, w := range files {
			if ok, _ := path.Match(strings.TrimPrefix(w.pattern, "usr/"), merged); ok {
				if strings.HasSuffix(w.dst, "/") {
					return w.dst + base, true
				}
				return w.dst, true
			}
		}
		if ok, _ := path.Match("usr/share/doc/*/copyright", name); ok {
			return "licences/" + path.Base(path.Dir(name)), true
		}
		if part == kernelPart && strings.HasPrefix(merged, "lib/modules/") && wantedModule(base) {
			return "modules/" + base, true
		}
		return "", false
	}
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return bounded.Said(s, 300)
}
