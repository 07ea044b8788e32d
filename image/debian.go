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
)

// debian fetches packages with apt's own client, from the sources the host is
// set up with, into lists and caches of our own: nothing is installed, and the
// host need not know the architecture.
type debian struct {
	arch  Arch
	state string // folder of our own for apt's lists
	fresh bool   // the lists were updated by this process
	ahead string // a folder of packages that were fetched together, "" if there is none
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
	cmd := exec.CommandContext(ctx, tool, append(d.options(), args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s is not on this machine: the parts come from Debian's packages; bring them by hand with `unitask image vendor --from DIR`", tool)
		}
		return nil, fmt.Errorf("%s %s: %w: %s", tool, strings.Join(args, " "), err, lastLine(errs.String()))
	}
	return out.Bytes(), nil
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
	if _, err := d.run(ctx, d.state, "apt-get", "update"); err != nil {
		return err
	}
	d.fresh = true
	return nil
}

// debs are the downloaded packages of one part.
type debs struct {
	files   []string
	pkg     string
	version string
	digest  string // sha256-HEX; of several packages, that of their digests
	behind  bool   // the pinned one is gone; this is its successor
}

// fetchAhead fetches the pinned packages of several parts at once, which takes a fraction of the
// time, for download to find. What can't be had so it gets one by one.
func (d *debian) fetchAhead(ctx context.Context, parts []LockedPart, dir string) error {
	if err := d.update(ctx); err != nil {
		return ctx.Err() // who fetches the first one says why
	}
	args := []string{"download"}
	for _, p := range parts {
		if p.From == "debian" {
			args = append(args, p.Package+"="+p.Version)
		}
	}
	d.ahead = dir
	_, _ = d.run(ctx, dir, "apt-get", args...)
	return ctx.Err()
}

// fetched is a part's package that was fetched ahead, "" if it was not.
func (d *debian) fetched(p LockedPart) string {
	if d.ahead == "" {
		return ""
	}
	for _, file := range glob(filepath.Join(d.ahead, p.Package+"_*.deb")) {
		if sum, err := sha256File(file); err == nil && "sha256-"+sum == p.Digest {
			return file
		}
	}
	return ""
}

// download gets the pinned package, or its successors where the archive has moved on or is
// another release's, into dir. apt has checked them against the archive's signed index.
func (d *debian) download(ctx context.Context, p LockedPart, dir string) (debs, error) {
	if err := d.update(ctx); err != nil {
		return debs{}, err
	}
	got := debs{pkg: p.Package, version: p.Version}
	packages := []string{p.Package}
	var err error
	if file := d.fetched(p); file != "" {
		err = os.Rename(file, filepath.Join(dir, filepath.Base(file)))
	} else {
		_, err = d.run(ctx, dir, "apt-get", "download", p.Package+"="+p.Version)
	}
	if err != nil {
		got.behind = true
		if len(p.Successors) > 0 {
			if packages, err = d.kernelPackages(ctx, p.Successors); err != nil {
				return debs{}, err
			}
			got.pkg = packages[0]
		}
		if _, err := d.run(ctx, dir, "apt-get", append([]string{"download"}, packages...)...); err != nil {
			return debs{}, err
		}
	}
	var digests []string
	for _, pkg := range packages {
		file, err := filepath.Glob(filepath.Join(dir, pkg+"_*.deb"))
		if err != nil || len(file) != 1 {
			return debs{}, fmt.Errorf("apt-get download %s left %d packages", pkg, len(file))
		}
		sum, err := sha256File(file[0])
		if err != nil {
			return debs{}, err
		}
		got.files, digests = append(got.files, file[0]), append(digests, sum)
	}
	got.digest = "sha256-" + digests[0]
	if len(digests) > 1 {
		sum := sha256.Sum256([]byte(strings.Join(digests, "\n")))
		got.digest = "sha256-" + hex.EncodeToString(sum[:])
	}
	if !got.behind && got.digest != p.Digest {
		return debs{}, fmt.Errorf("%s %s has digest %s, vendor.lock says %s", p.Package, p.Version, got.digest, p.Digest)
	}
	if got.behind {
		got.version, err = debVersion(got.files[0])
	}
	return got, err
}

// debVersion is the version in the name that apt gives a package's file: NAME_VERSION_ARCH.deb,
// where a colon is %3a.
func debVersion(file string) (string, error) {
	words := strings.Split(filepath.Base(file), "_")
	if len(words) != 3 {
		return "", fmt.Errorf("read version of %s: it is not named as apt names packages", filepath.Base(file))
	}
	return url.PathUnescape(words[1])
}

// kernelDependency is a package that a kernel's files may be in. Until Debian 13 they are in
// linux-image-VERSION; later that leads to one with the kernel and one with its modules.
var kernelDependency = regexp.MustCompile(`\blinux-(?:image|binary|modules)-[0-9][^\s,)]*`)

// kernelDepth is how many steps lead from the metapackage to the kernel's files.
const kernelDepth = 2

// kernelPackages returns the kernel package that the first metapackage leads to that the archive has,
// and those that this one leads to.
func (d *debian) kernelPackages(ctx context.Context, metas []string) ([]string, error) {
	var none []error
	for _, meta := range metas {
		found, err := d.leadsTo(ctx, meta)
		if len(found) > 0 || ctx.Err() != nil {
			return found, ctx.Err()
		}
		none = append(none, err)
	}
	return nil, fmt.Errorf("%s lead to no kernel package here; take a bundle, `unitask image vendor --from FILE`: %w", strings.Join(metas, " and "), errors.Join(none...))
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

// dependencies returns the kernel's packages that a package's description requires.
func dependencies(description string) (found []string) {
	for line := range strings.Lines(description) {
		if depends, ok := strings.CutPrefix(line, "Depends:"); ok {
			found = append(found, kernelDependency.FindAllString(depends, -1)...)
		}
	}
	return found
}

// wanted is a file of a package. The folders of pattern are those of Debian 12; later
// releases have the same files below usr.
type wanted struct {
	pattern string
	dst     string // in the part; one that ends in a slash is the folder for files that keep their names
}

// debianParts are the files that are wanted of each Debian part. All of them must be there.
func debianParts(part string, arch Arch) []wanted {
	lib := "lib/" + arch.triplet() + "/"
	switch part {
	case libcPart:
		return inRoot(arch.loader(), lib+"ld-linux-*", lib+"libc.so.6", lib+"libm.so.6", lib+"libdl.so.2", lib+"libpthread.so.0",
			lib+"librt.so.1", lib+"libresolv.so.2")
	case "libstdc++":
		return inRoot("usr/"+lib+"libstdc++.so.6", "usr/"+lib+"libstdc++.so.6.*")
	case "libmvec": // of libc's package, where an architecture has it
		return inRoot(lib + "libmvec.so.1")
	case "libgcc":
		return inRoot(lib + "libgcc_s.so.1")
	case "busybox":
		return inRoot("bin/busybox")
	case certificatesPart:
		return []wanted{{"usr/share/ca-certificates/mozilla/*.crt", "certs/"}}
	case PipTool:
		return []wanted{{"usr/share/python-wheels/pip-*.whl", toolFiles[PipTool]}}
	case "linux":
		return []wanted{{"boot/vmlinuz-*", "vmlinuz"}, {"lib/modules/*/vmlinuz", "vmlinuz"}} // later than 13
	}
	return nil
}

// inRoot are files that go to the guest's root filesystem at the same path.
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
	if files == nil && part != "linux" {
		return wholePackage
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
		if ok, _ := path.Match("usr/share/doc/*/copyright", name); ok && files != nil {
			return "licences/" + path.Base(path.Dir(name)), true
		}
		if part == "linux" && strings.HasPrefix(merged, "lib/modules/") && wantedModule(base) {
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
	if len(s) > 300 {
		s = s[:300]
	}
	return s
}
