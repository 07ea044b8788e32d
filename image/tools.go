package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Tools that packages are installed with, in a machine. They are parts of no image: they are fetched when
// they are first needed.
const (
	PipTool = "pip"
	NpmTool = "npm"
)

// toolFiles are the file of each, in its part: a wheel, and a package's archive.
var toolFiles = map[string]string{PipTool: "pip.whl", NpmTool: "npm.tgz"}

// Tool returns the file of a tool and its version, and fetches it first where it is missing.
func (s *Store) Tool(ctx context.Context, arch Arch, name string) (file, version string, err error) {
	p, err := s.Part(arch, name)
	if err == nil {
		return p.path(toolFiles[name]), p.Version, nil
	}
	unlock, err := s.lockVendor(ctx, arch)
	if err != nil {
		return "", "", err
	}
	defer unlock()
	if p, err = s.Part(arch, name); err == nil { // somebody else has just fetched it
		return p.path(toolFiles[name]), p.Version, nil
	}
	locked, err := Lock(arch)
	if err != nil {
		return "", "", err
	}
	for _, l := range locked {
		if l.Name != name {
			continue
		}
		if err := s.mayFetch(name+", with which packages are installed,", "a run with --offline=false"); err != nil {
			return "", "", err
		}
		s.logf("fetching %s %s, once: %s", name, l.Version, mebibytes(l.Size))
		apt := s.apt(arch, locked)
		if err := s.addPart(arch, name, func(dir string) (Part, error) { return s.fetch(ctx, apt, l, dir) }); err != nil {
			return "", "", fmt.Errorf("fetch %s: %w", name, err)
		}
		p, err = s.Part(arch, name)
		return p.path(toolFiles[name]), p.Version, err
	}
	return "", "", fmt.Errorf("vendor.lock has no %s", name)
}

// unpackNpm fills a part's folder from an archive of npm: npm itself stays packed.
func unpackNpm(name, file, dir string) error {
	if name != NpmTool {
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
