package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/bounded"
)

// The part with the program that turns TypeScript and JSX into JavaScript.
const (
	esbuildPart = "esbuild"
	esbuildFile = "root" + contract.Esbuild
)

// npmDownload fetches a package's tarball with npm's own client into dir and checks the pinned integrity.
func npmDownload(ctx context.Context, p LockedPart, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "npm", "pack", "--loglevel=error", "--ignore-scripts", "--pack-destination", dir,
		p.Package+"@"+p.Version)
	cmd.Dir = dir
	// Stay out of the user's home: a service may have none.
	cmd.Env = append(os.Environ(), "npm_config_cache="+filepath.Join(dir, ".npm"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "",
				fmt.Errorf(
					"npm is not on this machine: Node comes from the npm package %s; "+
						"install npm or bring the parts by hand with `unitask image vendor --from DIR`", p.Package)
		}
		return "", fmt.Errorf("npm pack %s@%s: %w: %s", p.Package, p.Version, err, npmReason(errs.String()))
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("npm pack %s left %d files", p.Package, len(files))
	}
	got, err := integrity(files[0])
	if err != nil {
		return "", err
	}
	if got != p.Digest {
		return "", fmt.Errorf("%s %s has integrity %s, vendor.lock says %s", p.Package, p.Version, got, p.Digest)
	}
	return files[0], nil
}

// npmReason returns npm's message about a failure, in one line of at most some 400 bytes.
func npmReason(stderr string) string {
	var said []string
	for line := range strings.Lines(stderr) {
		text, is := strings.CutPrefix(strings.TrimSpace(line), "npm error ")
		if !is {
			text, is = strings.CutPrefix(strings.TrimSpace(line), "npm ERR! ") // npm 9 and older
		}
		if is && !strings.HasPrefix(text, "A complete log") {
			said = append(said, text)
		}
	}
	if len(said) == 0 {
		return lastLine(stderr)
	}
	return bounded.Said(strings.Join(said, "; "), 400)
}

// integrity returns npm's form of a file's digest: sha512- and the checksum in base64.
func integrity(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	return "sha512-" + base64.StdEncoding.EncodeToString(h.Sum(nil)), nil
}

// unpackTgz writes the wanted files of a gzip-compressed tar below dir.
func unpackTgz(file, dir string, want selector) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(file), err)
	}
	defer z.Close()
	if err := unpackTar(z, dir, want); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(file), err)
	}
	return nil
}

// npmFiles selects Node's binary, the headers for compiling a library, and esbuild's binary.
func npmFiles(name string) (string, bool) {
	name = strings.TrimPrefix(name, "package/")
	switch name {
	case "bin/node":
		return "node", true
	case "bin/esbuild":
		return esbuildFile, true
	case "LICENSE", "include/node/node_api.h", "include/node/node_api_types.h",
		"include/node/js_native_api.h", "include/node/js_native_api_types.h":
		return filepath.Base(name), true
	}
	return "", false
}
