package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Tools that install packages in a machine. They are not part of any image, and are fetched on first use.
const (
	PipTool = "pip"
	NpmTool = "npm"
	// nodeHeaders are for compiling addons: vendor.lock's package of Node has them, but the part has only the
	// program.
	nodeHeaders = "node-headers"
)

// toolFiles names the file of each tool in its part: a wheel, a package's archive, and a folder.
var toolFiles = map[string]string{PipTool: "pip.whl", NpmTool: "npm.tgz", nodeHeaders: "include"}

// Headers returns the folder with the headers of the image's language, laid out as in /usr/include, and the language's
// version. It fetches Node's headers if they are missing.
func (ps Parts) Headers(ctx context.Context, arch Arch) (dir, version string, err error) {
	program, err := ps.Get(arch, ps.images.payload.Parts[0])
	if err != nil {
		return "", "", err
	}
	if len(ps.images.payload.BuildParts) > 0 {
		p, err := ps.Get(arch, ps.images.payload.BuildParts[0])
		return p.path("include"), program.Version, err
	}
	dir, version, err = ps.Tool(ctx, arch, nodeHeaders)
	if err == nil && version != program.Version {
		err = fmt.Errorf("the headers are those of Node %s, and the image has %s: `unitask image vendor --arch %s` "+
			"fetches it", version, program.Version, arch)
	}
	return dir, version, err
}

// Tool returns the file of a tool and its version. It fetches a missing tool.
func (ps Parts) Tool(ctx context.Context, arch Arch, name string) (file, version string, err error) {
	p, err := ps.Get(arch, name)
	if err == nil {
		return p.path(toolFiles[name]), p.Version, nil
	}
	unlock, err := ps.lockVendor(ctx, arch)
	if err != nil {
		return "", "", err
	}
	defer unlock()
	if p, err = ps.Get(arch, name); err == nil { // another process has just fetched it
		return p.path(toolFiles[name]), p.Version, nil
	}
	locked, err := Lock(arch)
	if err != nil {
		return "", "", err
	}
	for _, l := range locked {
		if l.Name != lockedAs(name) {
			continue
		}
		l.Name = name
		if err := ps.mayFetch(name+", with which packages are installed,", "a run with --offline=false"); err != nil {
			return "", "", err
		}
		ps.images.logf("fetching %s %s, once: %s", name, l.Version, mebibytes(l.Size))
		if err := ps.fetchOne(ctx, arch, locked, l); err != nil {
			return "", "", fmt.Errorf("fetch %s: %w", name, err)
		}
		p, err = ps.Get(arch, name)
		return p.path(toolFiles[name]), p.Version, err
	}
	return "", "", fmt.Errorf("vendor.lock has no %s", name)
}

// fetchOne fetches and installs one part.
func (ps Parts) fetchOne(ctx context.Context, arch Arch, locked []LockedPart, p LockedPart) error {
	packages, err := ps.debian(arch, locked)
	if err != nil {
		return err
	}
	remove, err := ps.fetchAhead(ctx, packages, arch, []LockedPart{p}, p.Size)
	if err != nil {
		return err
	}
	defer remove()
	return ps.addPart(arch, p.Name, func(dir string) (Part, error) { return ps.fetch(ctx, packages, p, dir) })
}

// lockedAs returns the name of the vendor.lock entry whose package contains a tool.
func lockedAs(name string) string {
	if name == nodeHeaders {
		return "node"
	}
	return name
}

// headerFiles selects Node's headers, and the files that node-gyp reads beside them.
func headerFiles(name string) (string, bool) {
	name = strings.TrimPrefix(name, "package/")
	return name, strings.HasPrefix(name, "include/node/")
}

// unpackNpm fills a part's folder from an npm archive; npm itself stays packed.
func unpackNpm(name, file, dir string) error {
	switch name {
	case NpmTool:
	case nodeHeaders:
		return unpackTgz(file, dir, headerFiles)
	default:
		return unpackTgz(file, dir, npmFiles)
	}
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(filepath.Join(dir, toolFiles[name]))
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		return err
	}
	return to.Close()
}
