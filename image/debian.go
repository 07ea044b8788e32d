package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// debian fetches packages with apt's own client, from the sources the host is
// set up with, into lists and caches of our own: nothing is installed, and the
// host need not know the architecture.
type debian struct {
	arch  Arch
	state string // folder of our own for apt's lists
	fresh bool   // the lists were updated by this process
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

// deb is a downloaded package.
type deb struct {
	file    string
	pkg     string
	version string
	digest  string // sha256-HEX
	behind  bool   // the pinned one is gone; this is its successor
}

// download gets the pinned package, or its successor where the archive has
// moved on, into dir. apt has checked it against the archive's signed index.
func (d *debian) download(ctx context.Context, p LockedPart, dir string) (deb, error) {
	if err := d.update(ctx); err != nil {
		return deb{}, err
	}
	got := deb{pkg: p.Package, version: p.Version}
	_, err := d.run(ctx, dir, "apt-get", "download", p.Package+"="+p.Version)
	if err != nil {
		got.behind = true
		if p.Successor != "" {
			if got.pkg, err = d.dependency(ctx, p.Successor); err != nil {
				return deb{}, err
			}
		}
		if _, err := d.run(ctx, dir, "apt-get", "download", got.pkg); err != nil {
			return deb{}, err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != 1 {
		return deb{}, fmt.Errorf("apt-get download %s left %d packages", got.pkg, len(files))
	}
	got.file = files[0]
	sum, err := sha256File(got.file)
	if err != nil {
		return deb{}, err
	}
	got.digest = "sha256-" + sum
	if !got.behind && got.digest != p.Digest {
		return deb{}, fmt.Errorf("%s %s has digest %s, vendor.lock says %s", p.Package, p.Version, got.digest, p.Digest)
	}
	if got.behind {
		out, err := exec.CommandContext(ctx, "dpkg-deb", "--field", got.file, "Version").Output()
		if err != nil {
			return deb{}, fmt.Errorf("read version of %s: %w", got.pkg, err)
		}
		got.version = strings.TrimSpace(string(out))
	}
	return got, nil
}

var kernelDependency = regexp.MustCompile(`(?m)^Depends:.*?(linux-image-[0-9][^ ,]*)`)

// dependency returns the kernel package that a metapackage leads to.
func (d *debian) dependency(ctx context.Context, meta string) (string, error) {
	out, err := d.run(ctx, d.state, "apt-cache", "show", "--no-all-versions", meta)
	if err != nil {
		return "", err
	}
	m := kernelDependency.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("package %s names no kernel package", meta)
	}
	return string(m[1]), nil
}

// unpackDeb writes the wanted files of a package below dir.
func unpackDeb(ctx context.Context, file, dir string, want selector) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(file), err)
	}
	unpackErr := unpackTar(pipe, dir, want)
	if unpackErr == nil { // the padding after the archive's end
		_, unpackErr = io.Copy(io.Discard, io.LimitReader(pipe, maxArchiveBytes))
	}
	pipe.Close()
	if err := cmd.Wait(); err != nil && unpackErr == nil {
		return fmt.Errorf("unpack %s: %w: %s", filepath.Base(file), err, lastLine(errs.String()))
	}
	return unpackErr
}

// debianFiles says which files of each Debian part are wanted, and where they
// lie in the part's folder. Below root/ is what goes to the guest's root
// filesystem at the same path.
func debianFiles(part string, arch Arch) selector {
	inRoot := func(names ...string) selector {
		return func(name string) (string, bool) {
			for _, n := range names {
				if ok, _ := path.Match(n, name); ok {
					return "root/" + name, true
				}
			}
			return "", false
		}
	}
	lib, usrlib := "lib/"+arch.triplet()+"/", "usr/lib/"+arch.triplet()+"/"
	switch part {
	case "libc":
		return inRoot(lib+"ld-linux-*", "lib64/ld-linux-*", "lib/ld-linux-*", lib+"libc.so.6", lib+"libm.so.6",
			lib+"libdl.so.2", lib+"libpthread.so.0", lib+"librt.so.1", lib+"libresolv.so.2")
	case "libstdc++":
		return inRoot(usrlib + "libstdc++.so.6*")
	case "libgcc":
		return inRoot(lib + "libgcc_s.so.1")
	case "busybox":
		return inRoot("bin/busybox")
	case certificatesPart:
		return func(name string) (string, bool) {
			ok, _ := path.Match("usr/share/ca-certificates/mozilla/*.crt", name)
			return "certs/" + path.Base(name), ok
		}
	case "linux":
		return func(name string) (string, bool) {
			base := path.Base(name)
			switch {
			case strings.HasPrefix(name, "boot/vmlinuz-"):
				return "vmlinuz", true
			case strings.HasPrefix(name, "lib/modules/") && wantedModule(base):
				return "modules/" + base, true
			}
			return "", false
		}
	}
	return func(string) (string, bool) { return "", false }
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
