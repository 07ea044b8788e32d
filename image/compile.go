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

// guestPart names the part with the guest's own compiled programs. The first payload uses this name; for other payloads
// the payload's name is appended.
const guestPart = "guest"

func (ps Parts) guestPart() string {
	if ps.images.payload.base() == ps.images.payloads[0].Name {
		return guestPart
	}
	return guestPart + "-" + ps.images.payload.base()
}

// certificatesPart holds the certificates that programs trust.
const certificatesPart = "ca-certificates"

// kernelPart is the linux kernel and its drivers.
const kernelPart = "linux"

// libcPart is the C library that the guest's programs run on.
const libcPart = "libc"

// libraryFile is the payload's library in the guest part.
const (
	libraryFile      = "shim.node"
	nanosLibraryFile = "nanos.so" // for that kernel, if it needs another library
)

// programFile is the payload's program in the guest part, if it is compiled.
const programFile = "program"

// guestDigest returns the digest over all of the guest's sources and the way its program is started.
func (ps Parts) guestDigest(arch Arch) (string, error) {
	versioned, err := ps.images.versioned(arch)
	if err != nil {
		return "", err
	}
	ps = versioned.Parts()
	h := sha256.New()
	err = fs.WalkDir(ps.images.payload.Sources, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(ps.images.payload.Sources, name)
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
	for _, name := range slices.Sorted(maps.Keys(ps.images.payload.Files)) {
		fmt.Fprintf(h, "%s %d\n%s", name, len(ps.images.payload.Files[name]), ps.images.payload.Files[name])
	}
	fmt.Fprintf(h, "%s %q %q %q\n", ps.images.payload.Library,
		append(ps.images.payload.ProgramSources, ps.images.payload.LibrarySources...), ps.images.payload.NanosSources,
		ps.images.payload.execText())
	return "sha256-" + hex.EncodeToString(h.Sum(nil)), nil
}

// ensureGuest compiles the guest's programs unless the store has them from the current sources. They are compiled on
// the vendoring host, from the sources in this binary, so that no binary is ever committed.
func (ps Parts) ensureGuest(ctx context.Context, arch Arch) error {
	versioned, err := ps.images.versioned(arch)
	if err != nil {
		return err
	}
	ps = versioned.Parts()
	digest, err := ps.guestDigest(arch)
	if err != nil {
		return err
	}
	if have, err := ps.Get(arch, ps.guestPart()); err == nil && have.Digest == digest {
		return nil
	}
	var include []string
	if len(ps.images.payload.Parts) > 0 {
		headers, err := ps.Get(arch, ps.images.payload.Parts[0])
		if err != nil {
			return err
		}
		include = []string{"-I", headers.dir}
	}
	for _, name := range ps.images.payload.BuildParts {
		p, err := ps.Get(arch, name)
		if err != nil {
			return err
		}
		include = append(include, "-I", p.path("include"), "-I", p.path("include", ps.images.payload.Include))
	}
	ps.images.logf("compiling the guest's programs for %s", arch)
	return ps.addPart(arch, ps.guestPart(), func(dir string) (Part, error) {
		part := Part{Name: ps.guestPart(), Version: digest[7:19], Digest: digest, From: "source", License: "MIT"}
		src := filepath.Join(dir, "src")
		if err := os.CopyFS(src, ps.images.payload.Sources); err != nil {
			return part, err
		}
		cc := compiler(arch)
		if err := os.WriteFile(filepath.Join(src, olderLibcFile), []byte(olderLibc), 0o644); err != nil {
			return part, err
		}
		base := []string{"-Os", "-Wall", "-Wextra", "-include", olderLibcFile, "-s", "-o"}
		if err := compile(ctx, src, cc, append(base, filepath.Join(dir, "init"), "-static", "init/init.c",
			"init/filesystems.c", "init/trace.c", "init/reset.c", "init/container.c", "init/layer.c", "init/session.c",
			"init/sessionstart.c", "init/sessionfiles.c", "init/sessionforward.c", "init/processes.c",
			"init/sessionmore.c", "init/sessioninfo.c", "init/sessionwatch.c", "init/sudo.c",
			"agent/agent.c", "agent/frames.c",
			"agent/files.c", "agent/artifacts.c", "agent/left.c", "agent/host.c", "agent/relay.c")...); err != nil {
			return part, err
		}
		if ps.images.payload.ProgramSources != nil {
			program := append(base, filepath.Join(dir, programFile), "-static")
			if err := compile(ctx, src, cc, append(program, ps.images.payload.ProgramSources...)...); err != nil {
				return part, err
			}
		}
		if ps.images.payload.Library == "" {
			return part, nil
		}
		libc, err := ps.Get(arch, PartOf(ps.images.payload.Release(), libcPart))
		if err != nil {
			return part, err
		}
		for _, kernel := range []Kernel{Linux, Nanos} {
			file, sources := filepath.Join(dir, ps.images.payload.library(kernel)), ps.images.payload.LibrarySources
			switch {
			case kernel == Nanos && ps.images.payload.NanosSources == nil:
				continue
			case kernel == Nanos:
				sources = slices.Concat(sources, ps.images.payload.NanosSources)
			}
			library := slices.Concat(base, []string{file, "-shared", "-fPIC", "-pthread"}, include)
			if err := errors.Join(compile(ctx, src, cc, append(library, sources...)...), runsOn(file, libc)); err != nil {
				return part, err
			}
		}
		return part, nil
	})
}

// olderLibc keeps headers of glibc 2.38 and later from replacing the number parsers (sscanf, strtol) with newer
// versions, which the guest's older libc lacks.
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

// runsOn returns why a library that was compiled here does not run on the guest's libc: it needs another libc (musl),
// or a newer symbol.
func runsOn(library string, libc Part) error {
	f, err := elf.Open(library)
	if err != nil {
		return err
	}
	defer f.Close()
	const how = "; compile where the parts come from, " +
		"or take a bundle of the parts with `unitask image vendor --from FILE`"
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read %s: %w", library, err)
	}
	for _, name := range needed {
		if !strings.HasPrefix(name, "ld-linux") && len(glob(libc.path("root/lib/*/"+name))) == 0 {
			return fmt.Errorf("the C compiler here makes libraries that need %s, which the guest's libc (%s) has not%s", name,
				libc.Version, how)
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
				return fmt.Errorf("the C compiler here makes libraries that need glibc %s, and the guest's is %s%s", version,
					libc.Version, how)
			}
		}
	}
	return nil
}

// newer compares the first two numbers of two versions, such as 2.38 and 2.36-9+deb12u14.
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
			pkg = "gcc-" + map[string]string{"aarch64-linux-gnu-gcc": "aarch64-linux-gnu libc6-dev-arm64-cross",
				"x86_64-linux-gnu-gcc": "x86-64-linux-gnu libc6-dev-amd64-cross"}[cc]
		}
		return fmt.Errorf(
			"%s is not on this machine: `apt-get install --no-install-recommends %s`, "+
				"or bring the part from another store with `unitask image vendor --from DIR`", cc, pkg)
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
