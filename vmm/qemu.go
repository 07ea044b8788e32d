package vmm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/userdir"
	"github.com/unitask/unitask/vmm/jail"
)

// QEMU describes an installed QEMU.
type QEMU struct {
	Path string `json:"path"`
	// ID changes when the binary does: it covers path, size and time of change.
	ID string `json:"id"`
	probed
}

// libraries returns a value that changes when the host's libraries are installed or removed.
func libraries() string {
	st, err := os.Stat("/etc/ld.so.cache")
	if err != nil {
		return ""
	}
	return strconv.FormatInt(st.ModTime().UnixNano(), 10)
}

// probed holds a program's answers about itself.
type probed struct {
	Version string `json:"version"` // "7.2.22"
	// Sandbox means that this build has its own system call filter (-sandbox).
	Sandbox bool `json:"sandbox"`
	// NoMicrovm means that this build for amd64 has no microvm machine (as RHEL's); q35 replaces it.
	NoMicrovm bool `json:"noMicrovm,omitempty"`
	// Program lists the program's files.
	Program jail.Program `json:"program"`
}

// The oldest QEMU that has the stream network back end.
const (
	minMajor = 7
	minMinor = 2
)

// versionTimeout bounds `qemu --version`, which takes some 20 ms.
var versionTimeout = 10 * time.Second // shorter in tests

var programs = map[Arch]string{AMD64: "qemu-system-x86_64", ARM64: "qemu-system-aarch64"}

// Cache remembers the versions of known binaries.
type Cache interface {
	Get(key string) (value string, ok bool)
	Put(key, value string)
}

// forgetful is a Cache that remembers nothing.
type forgetful struct{}

func (forgetful) Get(string) (string, bool) { return "", false }
func (forgetful) Put(string, string)        {}

// Variable names the environment variable with QEMU's location: a folder with its programs, or the program for the
// host's own architecture.
const Variable = "UNITASK_QEMU"

// prefixes are the folders of Homebrew and MacPorts. Desktops start programs without these on PATH.
var prefixes = []string{"/opt/homebrew/bin", "/usr/local/bin", "/opt/local/bin"}

// kvmProgram is the only QEMU on RHEL and similar systems, for the host's architecture.
const kvmProgram = "/usr/libexec/qemu-kvm"

// locate returns the path of an architecture's QEMU. The first of these counts: the path in Variable, PATH, the
// prefixes, RHEL's program, the one installed with unitask.
func locate(arch Arch) (string, error) {
	name := programs[arch]
	if named := os.Getenv(Variable); named != "" {
		st, err := os.Stat(named)
		switch {
		case err != nil:
			return "", fmt.Errorf("%w: %s: %v", ErrNoQEMU, Variable, err)
		case st.IsDir():
			path, err := exec.LookPath(filepath.Join(named, name))
			if err != nil {
				return "", fmt.Errorf("%w: %s names %s, which holds no %s", ErrNoQEMU, Variable, named, name)
			}
			return path, nil
		case string(arch) == runtime.GOARCH:
			return named, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range prefixes {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath(kvmProgram); err == nil && string(arch) == runtime.GOARCH {
		return path, nil
	}
	if dir := userdir.Share(); dir != "" {
		if path, err := exec.LookPath(filepath.Join(dir, "qemu", "bin", name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no %s on PATH (%s may name another folder): %s", ErrNoQEMU, name, Variable,
		installHint(arch))
}

// FindQEMU looks up the QEMU for an architecture and checks its version. seen may be nil.
func FindQEMU(ctx context.Context, arch Arch, seen Cache) (QEMU, error) {
	if seen == nil {
		seen = forgetful{}
	}
	path, err := locate(arch)
	if err != nil {
		return QEMU{}, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return QEMU{}, fmt.Errorf("%w: %v", ErrNoQEMU, err)
	}
	q := QEMU{Path: path, ID: fmt.Sprintf("%s:%d:%d", path, st.Size(), st.ModTime().UnixNano())}
	key := "program " + q.ID + " " + libraries()
	if text, ok := seen.Get(key); ok && json.Unmarshal([]byte(text), &q.probed) == nil {
		return q, nil
	}
	if q.probed, err = probe(ctx, path); err != nil {
		return QEMU{}, err
	}
	if !q.atLeast(minMajor, minMinor) {
		return QEMU{}, fmt.Errorf("%w: %s is version %s, %d.%d is needed: %s", ErrOldQEMU, path, q.Version, minMajor,
			minMinor, installHint(arch))
	}
	if text, err := json.Marshal(q.probed); err == nil {
		seen.Put(key, string(text))
	}
	return q, nil
}

var versionPattern = regexp.MustCompile(`QEMU emulator version (\d+\.\d+(?:\.\d+)?)`)

// probe asks a program for its version, first with the option that a build without a system call filter refuses.
func probe(ctx context.Context, path string) (probed, error) {
	var p probed
	var err error
	if p.Version, err = queryVersion(ctx, path, "-sandbox", sandboxOptions); err == nil {
		p.Sandbox = true
	} else if errors.Is(err, errNoAnswer) {
		return p, err
	} else if p.Version, err = queryVersion(ctx, path); err != nil {
		return p, err
	}
	machines, err := ask(ctx, path, "-M", "help")
	if errors.Is(err, errNoAnswer) {
		return p, err
	}
	p.NoMicrovm = err == nil && lacksMicrovm(string(machines))
	p.Program, err = examine(ctx, path)
	return p, err
}

// lacksMicrovm reports whether a list of machines has q35 and no microvm.
func lacksMicrovm(machines string) bool {
	q35 := false
	for line := range strings.Lines(machines) {
		name, _, _ := strings.Cut(line, " ")
		if name == "microvm" {
			return false
		}
		q35 = q35 || strings.HasPrefix(name, "q35") || strings.HasPrefix(name, "pc-q35-")
	}
	return q35
}

// examine lists the files of a QEMU: its libraries, the accelerators that are separate modules, and the folders that it
// searches for firmware. If the files can't be listed, the jail lacks the layers that depend on the list.
func examine(ctx context.Context, path string) (jail.Program, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return jail.Program{}, fmt.Errorf("examine QEMU: %w", err)
	}
	var dirs []string
	out, err := ask(ctx, path, "-L", "help")
	if errors.Is(err, errNoAnswer) {
		return jail.Program{}, err
	}
	if err == nil {
		for line := range strings.Lines(string(out)) {
			if dir := strings.TrimSpace(line); filepath.IsAbs(dir) {
				dirs = append(dirs, filepath.Clean(dir))
			}
		}
	}
	p, err := jail.Examine(real, modules(filepath.Dir(filepath.Dir(real))), dirs)
	if errors.Is(err, jail.ErrNoProgram) {
		return jail.Program{Path: real}, nil
	}
	return p, err
}

// modules returns the accelerators of a QEMU below a prefix that are separate libraries.
func modules(prefix string) (list []string) {
	for _, dir := range []string{"lib/*/qemu", "lib/qemu", "lib64/qemu"} {
		found, _ := filepath.Glob(filepath.Join(prefix, dir, "accel-*.so"))
		list = append(list, found...)
	}
	return list
}

func queryVersion(ctx context.Context, path string, options ...string) (string, error) {
	out, err := ask(ctx, path, append(options, "--version")...)
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("ask %s for its version: it says %.80q", path, out)
	}
	return string(m[1]), nil
}

// errNoAnswer means that a program timed out, could not be started, or was killed. This tells nothing about the
// program's abilities, so the result is not cached.
var errNoAnswer = errors.New("no answer")

// ask runs a program and returns its output.
func ask(ctx context.Context, path string, args ...string) ([]byte, error) {
	timed, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(timed, path, args...)
	cmd.WaitDelay = time.Second // for its child processes
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil && timed.Err() != nil {
		return nil, fmt.Errorf("%w from `%s %s` within %s: the host may be too busy, try again", errNoAnswer, path,
			strings.Join(args, " "), versionTimeout)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		err = fmt.Errorf("%w: %s", err, lastLine(string(exit.Stderr)))
	}
	if err != nil && (exit == nil || exit.ExitCode() < 0) {
		err = fmt.Errorf("%w from `%s %s`: %w; try again, or run it by hand", errNoAnswer, path, strings.Join(args, " "), err)
	}
	return out, err
}

// opensReadOnly reports whether a QEMU can open the file of its memory read-only (rom=off).
func (q QEMU) opensReadOnly() bool { return q.atLeast(8, 2) }

// atLeast reports whether a QEMU has that version or a newer one.
func (q QEMU) atLeast(major, minor int) bool {
	var has [2]int
	if _, err := fmt.Sscanf(q.Version, "%d.%d", &has[0], &has[1]); err != nil {
		return false
	}
	return has[0] > major || has[0] == major && has[1] >= minor
}

// installers are the commands to install QEMU, by the system's package manager.
var installers = []struct {
	tool, command string
	packages      map[Arch]string
}{
	{"apt-get", "apt-get install --no-install-recommends",
		map[Arch]string{AMD64: "qemu-system-x86", ARM64: "qemu-system-arm"}},
	{"dnf", "dnf install", map[Arch]string{AMD64: "qemu-system-x86-core", ARM64: "qemu-system-aarch64-core"}},
	{"pacman", "pacman -S", map[Arch]string{AMD64: "qemu-system-x86", ARM64: "qemu-system-aarch64"}},
	{"apk", "apk add", map[Arch]string{AMD64: "qemu-system-x86_64", ARM64: "qemu-system-aarch64"}},
	{"brew", "brew install", map[Arch]string{AMD64: "qemu", ARM64: "qemu"}},
}

// installHint tells how to install QEMU on this system.
func installHint(arch Arch) string {
	for _, i := range installers {
		if _, err := exec.LookPath(i.tool); err == nil {
			return fmt.Sprintf("`%s %s`", i.command, i.packages[arch])
		}
	}
	return fmt.Sprintf("install your distribution's package of it; on Debian and Ubuntu `%s %s`", installers[0].command,
		installers[0].packages[arch])
}
