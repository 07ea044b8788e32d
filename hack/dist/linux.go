package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"

	"github.com/unitask/unitask/internal/atomicfile"
)

// linuxFormats are the formats of Linux's packages, with what the program needs by their names for it.
var linuxFormats = []struct {
	format string
	qemu   map[string]string
}{
	{"deb", map[string]string{"amd64": "qemu-system-x86", "arm64": "qemu-system-arm"}},
	{"rpm", map[string]string{"amd64": "qemu-system-x86-core", "arm64": "qemu-system-aarch64-core"}},
}

// linuxPackages writes a deb and an rpm: the program, its manual pages, completions, and a systemd unit, which stays
// off.
func linuxPackages(version, arch, program, out string) error {
	contents, err := installed(filepath.Dir(program), "/usr")
	if err != nil {
		return err
	}
	contents = append(contents, &files.Content{Source: program, Destination: "/usr/bin/unitask",
		FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: whenBuilt}})
	for _, f := range linuxFormats {
		own := nfpm.Overridables{Contents: contents, Depends: []string{f.qemu[arch]}, Recommends: []string{"unitask-parts"}}
		if f.format == "deb" { // its zsh has a folder for packages
			own.Contents = slices.Clone(contents)
			for i, c := range contents {
				if c.Destination == zshCompletion {
					moved := *c
					moved.Destination = "/usr/share/zsh/vendor-completions/_unitask"
					own.Contents[i] = &moved
				}
			}
		} else { // RHEL's only QEMU has another name
			own.Depends = []string{"(" + f.qemu[arch] + " or qemu-kvm-core)"}
		}
		if err := linuxPackage(f.format, "unitask", version, arch, out, own); err != nil {
			return err
		}
	}
	return nil
}

// zshCompletion is where zsh looks, except a distribution's own one.
const zshCompletion = "/usr/share/zsh/site-functions/_unitask"

// installed returns the files beside a program, where a Linux system has them. The program is in prefix/bin.
func installed(dir, prefix string) (list files.Contents, err error) {
	add := func(from, to string) {
		list = append(list, &files.Content{Source: from, Destination: to,
			FileInfo: &files.ContentFileInfo{Mode: 0o644, MTime: whenBuilt}})
	}
	for shell, to := range map[string]string{"bash": "/usr/share/bash-completion/completions/unitask",
		"zsh": zshCompletion, "fish": "/usr/share/fish/vendor_completions.d/unitask.fish"} {
		add(filepath.Join(dir, "completions", shells[shell]), to)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man", "*.1"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		add(page, "/usr/share/man/man1/"+filepath.Base(page))
	}
	add("LICENSE", "/usr/share/doc/unitask/copyright")
	add(skill, "/usr/share/unitask/"+skillPlace)
	unit, err := systemUnit(dir, prefix)
	add(unit, "/usr/lib/systemd/system/unitask-mcp.service")
	return list, err
}

// systemUnit writes the unit of an MCP server in prefix/bin, beside the program, and returns its path.
func systemUnit(dir, prefix string) (string, error) {
	text, err := os.ReadFile("hack/deploy/unitask-mcp.service")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "unitask-mcp.service")
	return name, write(name, bytes.ReplaceAll(text, []byte("/usr/local/bin/"), []byte(prefix+"/bin/")))
}

// linuxParts writes a deb and an rpm with the bundle of an architecture's parts.
func linuxParts(version, arch, bundle, out string) error {
	for _, f := range linuxFormats {
		own := nfpm.Overridables{Contents: files.Contents{{Source: bundle,
			Destination: "/usr/share/unitask/" + bundleName(arch),
			FileInfo:    &files.ContentFileInfo{Mode: 0o644, MTime: whenBuilt}}}}
		own.Deb.Compression = "none" // the bundle is compressed
		if err := linuxPackage(f.format, "unitask-parts", version, arch, out, own); err != nil {
			return err
		}
	}
	return nil
}

// install builds this system's program, and puts it with what belongs to it below prefix, as a package does below /usr.
// destdir comes before each path that is written, and is in no file.
func install(version, destdir, prefix string) error {
	if err := check(version); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "unitask-install-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "unitask")
	if err := build(program, version, runtime.GOOS, runtime.GOARCH, publisher{}, sameBytes); err != nil {
		return err
	}
	if _, err := extras(version, dir); err != nil {
		return err
	}
	list, err := installed(dir, strings.TrimSuffix(prefix, "/"))
	if err != nil {
		return err
	}
	list = append(list, &files.Content{Source: program, Destination: "/usr/bin/unitask",
		FileInfo: &files.ContentFileInfo{Mode: 0o755}})
	for _, f := range list {
		to := filepath.Join(destdir, prefix, strings.TrimPrefix(f.Destination, "/usr"))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Fill(to, f.FileInfo.Mode, func(w *os.File) error { return copyFrom(w, f.Source) }); err != nil {
			return err
		}
	}
	fmt.Println(filepath.Join(destdir, prefix, "bin", "unitask"))
	return nil
}

func linuxPackage(format, name, version, arch, out string, own nfpm.Overridables) (err error) {
	info := nfpm.WithDefaults(&nfpm.Info{Overridables: own, Name: name, Arch: arch, Platform: "linux", Version: version,
		Release: "1", Section: "utils", Priority: "optional", Maintainer: "The unitask authors <unitask@example.org>",
		Description: description, Homepage: repository, License: "MIT", MTime: whenBuilt})
	info.RPM.BuildHost = "unitask"
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return packager.Package(info, f)
}
