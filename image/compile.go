package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// guestPart is the part that holds the guest's own compiled programs: those of the first payload,
// and with another's name behind it that one's.
const guestPart = "guest"

func (s *Store) guestPart() string {
	if s.payload.base() == s.payloads[0].Name {
		return guestPart
	}
	return guestPart + "-" + s.payload.base()
}

// certificatesPart holds the certificates that programs trust.
const certificatesPart = "ca-certificates"

// kernelPart is the linux kernel and its drivers.
const kernelPart = "linux"

// libcPart is the C library that the guest's programs run on.
const libcPart = "libc"

// libraryFile is the payload's library in it.
const (
	libraryFile      = "shim.node"
	nanosLibraryFile = "nanos.so" // where that kernel has another one
)

// programFile is the payload's program in it, where that is compiled.
const programFile = "program"

// guestDigest returns the digest over all of the guest's sources, and how its program is started.
func (s *Store) guestDigest(arch Arch) (string, error) {
	s, err := s.versioned(arch)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	err = fs.WalkDir(s.payload.Sources, ".", func(name string, d fs.DirEntry, err error) error {
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
	fmt.Fprintf(h, "%s %q %q %q\n", s.payload.Library, append(s.payload.ProgramSources, s.payload.LibrarySources...), s.payload.NanosSources, s.payload.execText())
	return "sha256-" + hex.EncodeToString(h.Sum(nil)), nil
}

// ensureGuest compiles the guest's programs unless the store has those of the
// present sources. They are compiled where they are vendored, from the sources
// in this binary, so that no binary is ever committed.
func (s *Store) ensureGuest(ctx context.Context, arch Arch) error {
	s, err := s.versioned(arch)
	if err != nil {
		return err
	}
	digest, err := s.guestDigest(arch)
	if err != nil {
		return err
	}
	if have, err := s.Part(arch, s.guestPart()); err == nil && have.Digest == digest {
		return nil
	}
	var include []string
	if len(s.payload.Parts) > 0 {
		headers, err := s.Part(arch, s.payload.Parts[0])
		if err != nil {
			return err
		}
		include = []string{"-I", headers.dir}
	}
	for _, name := range s.payload.BuildParts {
		p, err := s.Part(arch, name)
		if err != nil {
			return err
		}
		include = append(include, "-I", p.path("include"), "-I", p.path("include", s.payload.Include))
	}
	s.logf("compiling the guest's programs for %s", arch)
	return s.addPart(arch, s.guestPart(), func(dir string) (Part, error) {
		part := Part{Name: s.guestPart(), Version: digest[7:19], Digest: digest, From: "source", License: "MIT"}
		src := filepath.Join(dir, "src")
		if err := os.CopyFS(src, s.payload.Sources); err != nil {
			return part, err
		}
		cc := compiler(arch)
		if err := os.WriteFile(filepath.Join(src, olderLibcFile), []byte(olderLibc), 0o644); err != nil {
			return part, err
		}
		base := []string{"-Os", "-Wall", "-Wextra", "-include", olderLibcFile, "-s", "-o"}
		if err := compile(ctx, src, cc, append(base, filepath.Join(dir, "init"), "-static", "init/init.c", "init/filesystems.c", "init/trace.c", "init/reset.c", "init/container.c", "init/layer.c", "init/session.c", "init/sessionstart.c", "init/sessionfiles.c", "init/sessionforward.c", "agent/agent.c", "agent/frames.c", "agent/files.c", "agent/artifacts.c", "agent/host.c", "agent/relay.c")...); err != nil {
			return part, err
		}
		if s.payload.ProgramSources != nil {
			program := append(base, filepath.Join(dir, programFile), "-static")
			if err := compile(ctx, src, cc, append(program, s.payload.ProgramSources...)...); err != nil {
				return part, err
			}
		}
		if s.payload.Library == "" {
			return part, nil
		}
		libc, err := s.Part(arch, libcPart)
		if err != nil {
			return part, err
		}
		for _, kernel := range []Kernel{Linux, Nanos} {
			file, sources := filepath.Join(dir, s.payload.library(kernel)), s.payload.LibrarySources
			switch {
			case kernel == Nanos && s.payload.NanosSources == nil:
				continue
			case kernel == Nanos:
				sources = slices.Concat(sources, s.payload.NanosSources)
			}
			library := slices.Concat(base, []string{file, "-shared", "-fPIC", "-pthread"}, include)
			if err := errors.Join(compile(ctx, src, cc, append(library, sources...)...), runsOn(file, libc)); err != nil {
				return part, err
			}
		}
		return part, nil
	})
}

// olderLibc keeps headers of glibc 2.38 and later from exchanging the number parsers
// (sscanf, strtol) for versions of their own, which the guest's older libc lacks.
const (
	olderLibcFile = "older_libc.h"
	olderLibc     = `#define _GNU_SOURCE
#include <features.h>
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0
`
)

// runsOn says why a library that was compiled here does not run on the guest's libc: it
// needs another one (musl's), or a symbol that came later.
func runsOn(library string, libc Part) error {
	f, err := elf.Open(library)
	if err != nil {
		return err
	}
	defer f.Close()
	const how = "; compile where the parts come from, or take a bundle of the parts with `unitask image vendor --from FILE`"
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read %s: %w", library, err)
	}
	for _, name := range needed {
		if !strings.HasPrefix(name, "ld-linux") && len(glob(libc.path("root/lib/*/"+name))) == 0 {
			return fmt.Errorf("the C compiler here makes libraries that need %s, which the guest's libc (%s) has not%s", name, libc.Version, how)
		}
	}
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return fmt.Errorf("read %s: %w", library, err)
	}
	for _, lib := range needs {
		for _, need := range lib.Needs {
			version, ok := strings.CutPrefix(need.Dep, "GLIBC_")
			if ok && newer(version, libc.Version) {
				return fmt.Errorf("the C compiler here makes libraries that need glibc %s, and the guest's is %s%s", version, libc.Version, how)
			}
		}
	}
	return nil
}

// newer compares the first two numbers of versions: 2.38 and 2.36-9+deb12u14.
func newer(a, b string) bool {
	var x, y [2]int
	_, _ = fmt.Sscanf(a, "%d.%d", &x[0], &x[1])
	_, _ = fmt.Sscanf(b, "%d.%d", &y[0], &y[1])
	return slices.Compare(x[:], y[:]) > 0
}

func glob(pattern string) []string {
	found, _ := filepath.Glob(pattern)
	return found
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
