package image

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/mod/sumdb/dirhash"
)

// Go's toolchain is the module golang.org/toolchain. The go command fetches its zip from the host's configured module
// proxy. vendor.lock has the module's checksum in go.sum's form.

const (
	goPart  = "go"
	goRoot  = "root/usr/local/go" // in the part's folder
	goCache = goRoot + "/cache"   // the compiled standard library
)

// goDownload fetches the toolchain's zip into dir and checks it.
func goDownload(ctx context.Context, p LockedPart, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", p.Package+"@"+p.Version)
	cmd.Dir = dir // a folder without go.mod
	// Leave nothing in the user's folders: a service may have none.
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOWORK=off", "GOMODCACHE="+filepath.Join(dir, "mod"),
		"GOPATH="+filepath.Join(dir, "path"), "GOCACHE="+filepath.Join(dir, "build"),
		"GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -modcacherw"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "",
			fmt.Errorf(
				"go is not on this machine: the toolchain comes from the module %s; "+
					"install Go, or bring the part by hand with `unitask image vendor --from DIR`", p.Package)
	}
	var said struct{ Zip, Error string }
	if e := json.Unmarshal(out.Bytes(), &said); err != nil || e != nil || said.Error != "" {
		return "", fmt.Errorf("go mod download %s@%s: %w: %s", p.Package, p.Version, errors.Join(err, e),
			lastLine(said.Error+"\n"+errs.String()))
	}
	return said.Zip, checkGoZip(p, said.Zip)
}

func checkGoZip(p LockedPart, file string) error {
	got, err := dirhash.HashZip(file, dirhash.Hash1)
	if err == nil && got != p.Digest {
		err = fmt.Errorf("%s %s has the sum %s, vendor.lock says %s", p.Package, p.Version, got, p.Digest)
	}
	return err
}

// goPrograms matches the executable files: a module's zip has no modes.
var goPrograms = regexp.MustCompile(`^(?:bin|pkg/tool/[a-z0-9_]+)/[a-z0-9]+$`)

// goFiles selects the files of the toolchain that compile and run programs: no tests, and no sources of the toolchain's
// own programs.
func goFiles(name string) (dst string, ok bool) {
	if name == "LICENSE" {
		return name, true
	}
	top, rest, _ := strings.Cut(name, "/")
	switch top {
	case "bin", "pkg":
		return goRoot + "/" + name, true
	case "VERSION", "go.env":
		return goRoot + "/" + name, rest == ""
	case "lib":
		return goRoot + "/" + name, strings.HasPrefix(rest, "time/") || strings.HasPrefix(rest, "fips140/")
	case "src":
		own := strings.HasPrefix(rest, "cmd/") || strings.HasSuffix(rest, "_test.go") ||
			strings.Contains("/"+rest, "/testdata/")
		return goRoot + "/" + name, !own && (strings.Contains(rest, "/") || rest == "go.mod" || rest == "go.sum")
	}
	return "", false
}

// unpackGo fills a part's folder from the module's zip, and compiles the standard library.
func (ps Parts) unpackGo(ctx context.Context, p LockedPart, file, dir string) error {
	z, err := zip.OpenReader(file)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(file), err)
	}
	defer z.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if len(z.File) > maxArchiveFiles {
		return fmt.Errorf("unpack %s: more than %d files", filepath.Base(file), maxArchiveFiles)
	}
	left := uint64(maxArchiveBytes)
	for _, f := range z.File {
		name, ok := strings.CutPrefix(f.Name, p.Package+"@"+p.Version+"/")
		if !ok || !filepath.IsLocal(name) || path.Clean(name) != name {
			return fmt.Errorf("unpack %s: %.200q is no file of the module", filepath.Base(file), f.Name)
		}
		dst, ok := goFiles(name)
		if !ok {
			continue
		}
		if f.UncompressedSize64 > left {
			return fmt.Errorf("unpack %s: more than %d bytes", filepath.Base(file), int64(maxArchiveBytes))
		}
		left -= f.UncompressedSize64
		mode := fs.FileMode(0o644)
		if goPrograms.MatchString(name) {
			mode = 0o755
		}
		if err := unpackZipFile(root, f, dst, mode); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	if !compilesGo(p.Arch) {
		ps.images.logf(
			"Go's standard library for %s is compiled by each program that uses it: "+
				"that can be done ahead on linux of that architecture only", p.Arch)
		return nil
	}
	ps.images.logf("compiling Go's standard library, once")
	if err := warmGo(ctx, dir); err != nil {
		return err
	}
	return ps.directGo(ctx, dir)
}

// compilesGo reports whether this host can execute the toolchain.
func compilesGo(arch Arch) bool { return runtime.GOOS == "linux" && arch == HostArch() }

func unpackZipFile(root *os.Root, f *zip.File, dst string, mode fs.FileMode) error {
	if err := root.MkdirAll(path.Dir(dst), 0o755); err != nil {
		return err
	}
	from, err := f.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	if err := writeFile(root, dst, from, int64(f.UncompressedSize64), mode); err != nil {
		return err
	}
	if n, err := from.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) { // reading to the end verifies the checksum
		return errors.Join(errors.New("is longer than its archive says, or another file"), err)
	}
	return nil
}

// goEntry matches an entry of Go's cache for an action: digest and size of its output, and a time. The time is only
// used for trimming, and would make each cache different.
var goEntry = regexp.MustCompile(`^(v1 [0-9a-f]{64} [0-9a-f]{64} [ 0-9]{20} )[ 0-9]{20}\n$`)

// goEnv returns the environment for a part's own go command: pure Go, and no other toolchain.
func goEnv(root, cache, tmp string) []string {
	return []string{"HOME=" + tmp, "TMPDIR=" + tmp, "PATH=", "GOROOT=" + root, "GOCACHE=" + cache, "GOENV=off",
		"GOTOOLCHAIN=local", "GOPROXY=off", "GOFLAGS=", "CGO_ENABLED=0"}
}

// warmGo compiles the standard library into the image's build cache, with the vendored toolchain and for pure Go: the
// guest has no C compiler. The result depends neither on the toolchain's folder nor on the host.
func warmGo(ctx context.Context, dir string) error {
	root, cache := filepath.Join(dir, goRoot), filepath.Join(dir, goCache)
	tmp, err := os.MkdirTemp(dir, ".build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin/go"), "build", "std")
	cmd.Dir = tmp
	cmd.Env = goEnv(root, cache, tmp)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("compile Go's standard library: %w: %s", err, lastLine(out.String()))
	}
	return filepath.WalkDir(cache, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir():
			return err
		case filepath.Dir(name) == cache: // README, trim.txt
			return os.Remove(name)
		case !strings.HasSuffix(name, "-a"):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		entry := goEntry.FindSubmatch(text)
		if entry == nil {
			return fmt.Errorf("%s is no entry of Go's build cache as this version knows it", name)
		}
		return os.WriteFile(name, fmt.Appendf(nil, "%s%20d\n", entry[1], 1), 0o644)
	})
}
