package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// guestPart is the part that holds the guest's own compiled programs.
const guestPart = "guest"

// certificatesPart holds the certificates that programs trust.
const certificatesPart = "ca-certificates"

// libraryFile is the payload's library in it.
const libraryFile = "shim.node"

// guestDigest is the digest over all of the guest's sources, and how its program is started.
func (s *Store) guestDigest() (string, error) {
	h := sha256.New()
	err := fs.WalkDir(s.payload.Sources, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(s.payload.Sources, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("read guest sources: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(s.payload.Files)) {
		fmt.Fprintf(h, "%s %d\n%s", name, len(s.payload.Files[name]), s.payload.Files[name])
	}
	fmt.Fprintf(h, "%s %q %q\n", s.payload.Library, s.payload.LibrarySources, s.payload.execText())
	return "sha256-" + hex.EncodeToString(h.Sum(nil)), nil
}

// ensureGuest compiles the guest's programs unless the store has those of the
// present sources. They are compiled where they are vendored, from the sources
// in this binary, so that no binary is ever committed.
func (s *Store) ensureGuest(ctx context.Context, arch Arch) error {
	digest, err := s.guestDigest()
	if err != nil {
		return err
	}
	if have, err := s.Part(arch, guestPart); err == nil && have.Digest == digest {
		return nil
	}
	headers, err := s.Part(arch, s.payload.Parts[0])
	if err != nil {
		return err
	}
	s.logf("compiling the guest's programs for %s", arch)
	return s.addPart(arch, guestPart, func(dir string) (Part, error) {
		part := Part{Name: guestPart, Version: digest[7:19], Digest: digest, From: "source", License: "MIT"}
		src := filepath.Join(dir, "src")
		if err := os.CopyFS(src, s.payload.Sources); err != nil {
			return part, err
		}
		cc := compiler(arch)
		base := []string{"-Os", "-Wall", "-Wextra", "-s", "-o"}
		if err := compile(ctx, src, cc, append(base, filepath.Join(dir, "init"), "-static", "init/init.c", "agent/agent.c", "agent/relay.c")...); err != nil {
			return part, err
		}
		library := append(base, filepath.Join(dir, libraryFile), "-shared", "-fPIC", "-pthread", "-I", headers.dir)
		return part, compile(ctx, src, cc, append(library, s.payload.LibrarySources...)...)
	})
}

// compiler names the C compiler for an architecture, as Debian's packages do.
func compiler(arch Arch) string {
	if arch == HostArch() {
		return "gcc"
	}
	if arch == ARM64 {
		return "aarch64-linux-gnu-gcc"
	}
	return "x86_64-linux-gnu-gcc"
}

func compile(ctx context.Context, dir, cc string, args ...string) error {
	path, err := exec.LookPath(cc)
	if err != nil {
		pkg := "gcc libc6-dev"
		if cc != "gcc" {
			pkg = "gcc-" + map[string]string{"aarch64-linux-gnu-gcc": "aarch64-linux-gnu libc6-dev-arm64-cross", "x86_64-linux-gnu-gcc": "x86-64-linux-gnu libc6-dev-amd64-cross"}[cc]
		}
		return fmt.Errorf("%s is not on this machine: `apt-get install --no-install-recommends %s`, or bring the part from another store with `unitask image vendor --from DIR`", cc, pkg)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("compile with %s: %w\n%s", cc, err, errs.String())
	}
	return nil
}
