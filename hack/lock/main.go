// Command lock brings the lock files of image up to date. It looks up each Debian package in the signed index of the
// file's release, and writes version, path, digest and size. It lists what the packages of an image require and the
// image lacks. A new part is a [[part]] with name, arch, from, package and license; the rest is filled in.
//
//	go run ./hack/lock
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/image/debian"
	"github.com/unitask/unitask/internal/language"
)

func main() {
	log.SetFlags(0)
	if err := run(context.Background()); err != nil {
		log.Fatal("lock: ", err)
	}
}

func run(ctx context.Context) error {
	mirrors := debian.OfHost()
	if named := os.Getenv("UNITASK_DEBIAN_MIRROR"); named != "" {
		var err error
		if mirrors, err = debian.Named(named); err != nil {
			return err
		}
	}
	packages := map[string]string{} // of Debian, by architecture and part
	for _, file := range image.LockFiles() {
		if err := update(ctx, mirrors, file, packages); err != nil {
			return fmt.Errorf("%s: %w", file.Name, err)
		}
	}
	return nil
}

// update updates a lock file, and notes its packages.
func update(ctx context.Context, mirrors debian.Mirrors, file image.LockFile, packages map[string]string) error {
	name := filepath.Join("image", file.Name)
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var lock struct {
		Part []image.LockedPart `toml:"part"`
	}
	if _, err := toml.Decode(string(text), &lock); err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	indexes := map[image.Arch]*debian.Index{}
	for _, arch := range []image.Arch{image.AMD64, image.ARM64} {
		a := &debian.Archive{Mirrors: mirrors, Suite: file.Release, Arch: string(arch), Logf: log.Printf,
			Cache: filepath.Join(cache, "unitask-lock")}
		if indexes[arch], err = a.Index(ctx); err != nil {
			return err
		}
	}
	for i, p := range lock.Part {
		if p.From == "debian" {
			if lock.Part[i], err = updated(indexes[p.Arch], p); err != nil {
				return err
			}
			packages[string(p.Arch)+" "+image.PartOf(file.Release, p.Name)] = lock.Part[i].Package
		}
	}
	for arch, index := range indexes {
		report(index, arch, file.Release, packages)
	}
	head, _, _ := strings.Cut(string(text), "[[part]]")
	return os.WriteFile(name, []byte(head+format(lock.Part)), 0o644)
}

// updated returns a part with the release's package.
func updated(index *debian.Index, p image.LockedPart) (image.LockedPart, error) {
	name := index.Successor(p.Package, p.Successors)
	if p.Name == "linux" {
		kernels, err := index.Kernel(p.Successors)
		if err != nil {
			return p, err
		}
		name = kernels[0]
	}
	found, there := index.Packages[name]
	if !there {
		log.Printf("%s for %s: the release has no %s", p.Name, p.Arch, p.Package)
		return p, nil
	}
	if p.Package != name || p.Version != found.Version {
		log.Printf("%s for %s: %s %s is now %s %s", p.Name, p.Arch, p.Package, p.Version, name, found.Version)
	}
	p.Package, p.Version, p.Path, p.Size = name, found.Version, found.Path, found.Size
	p.Digest = "sha256-" + found.SHA256
	return p, nil
}

// report lists the packages that the packages of a release's images require and that are no part of these images.
func report(index *debian.Index, arch image.Arch, release string, packages map[string]string) {
	for _, payload := range language.Payloads() {
		if payload.Release() != release {
			continue
		}
		var has []string
		for _, part := range payload.Parts {
			if name := packages[string(arch)+" "+part]; name != "" {
				has = append(has, name)
			}
		}
		for _, name := range has {
			required, err := index.Closure(name, func(n string) bool { return slices.Contains(has, n) })
			if err != nil {
				log.Printf("%s for %s: %v", payload.Name, arch, err)
			}
			if len(required) > 1 {
				log.Printf("the image %s for %s lacks what %s requires: %s", payload.Name, arch, name,
					strings.Join(required[1:], " "))
			}
		}
	}
}

// format writes parts as TOML, in the order of the lock.
func format(parts []image.LockedPart) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("[[part]]\n")
		line := func(key, value string) {
			if value != "" {
				fmt.Fprintf(&b, "%s = %q\n", key, value)
			}
		}
		line("name", p.Name)
		line("arch", string(p.Arch))
		line("from", p.From)
		line("package", p.Package)
		if len(p.Successors) > 0 {
			fmt.Fprintf(&b, "successors = [\"%s\"]\n", strings.Join(p.Successors, `", "`))
		}
		if p.Dropped {
			b.WriteString("dropped = true\n")
		}
		line("version", p.Version)
		line("path", p.Path)
		line("url", p.URL)
		line("md5url", p.MD5URL)
		line("digest", p.Digest)
		if p.Size > 0 {
			fmt.Fprintf(&b, "size = %d\n", p.Size)
		}
		line("license", p.License)
	}
	return b.String()
}
