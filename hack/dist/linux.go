package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
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
	contents, err := installed(filepath.Dir(program))
	if err != nil {
		return err
	}
	contents = append(contents, &files.Content{Source: program, Destination: "/usr/bin/unitask",
		FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: whenBuilt}})
	for _, f := range linuxFormats {
		own := nfpm.Overridables{Contents: contents, Depends: []string{f.qemu[arch]}, Recommends: []string{"unitask-parts"}}
		if f.format == "rpm" { // RHEL's only QEMU has another name
			own.Depends = []string{"(" + f.qemu[arch] + " or qemu-kvm-core)"}
		}
		if err := linuxPackage(f.format, "unitask", version, arch, out, own); err != nil {
			return err
		}
	}
	return nil
}

// installed returns the files beside a program, where a Linux system has them.
func installed(dir string) (list files.Contents, err error) {
	add := func(from, to string) {
		list = append(list, &files.Content{Source: from, Destination: to,
			FileInfo: &files.ContentFileInfo{Mode: 0o644, MTime: whenBuilt}})
	}
	for shell, to := range map[string]string{"bash": "/usr/share/bash-completion/completions/unitask",
		"zsh": "/usr/share/zsh/vendor-completions/_unitask", "fish": "/usr/share/fish/vendor_completions.d/unitask.fish"} {
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
	unit, err := systemUnit(dir)
	add(unit, "/usr/lib/systemd/system/unitask-mcp.service")
	return list, err
}

// systemUnit writes the MCP server's unit for a package beside the program, and returns its path.
func systemUnit(dir string) (string, error) {
	text, err := os.ReadFile("hack/deploy/unitask-mcp.service")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "unitask-mcp.service")
	return name, write(name, bytes.ReplaceAll(text, []byte("/usr/local/bin/"), []byte("/usr/bin/")))
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
