package vmm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"time"
)

// QEMU is an installed QEMU.
type QEMU struct {
	Path string `json:"path"`
	// ID changes when the binary does: path, size and time of change.
	ID string `json:"id"`
	probed
}

// probed is what a program says of itself when it is asked.
type probed struct {
	Version string `json:"version"` // "7.2.22"
	// Sandbox says that this build has a system call filter of its own (-sandbox).
	Sandbox bool `json:"sandbox"`
}

// The oldest QEMU that has the stream network back end.
const (
	minMajor = 7
	minMinor = 2
)

// versionTimeout bounds `qemu --version`, which takes some 20 ms.
const versionTimeout = 10 * time.Second

var programs = map[Arch]string{AMD64: "qemu-system-x86_64", ARM64: "qemu-system-aarch64"}

// Cache remembers the versions of binaries that were seen before.
type Cache interface {
	Get(key string) (value string, ok bool)
	Put(key, value string)
}

// forgetful is no cache.
type forgetful struct{}

func (forgetful) Get(string) (string, bool) { return "", false }
func (forgetful) Put(string, string)        {}

// FindQEMU looks up the QEMU for an architecture on PATH and checks its version. seen
// may be nil.
func FindQEMU(ctx context.Context, arch Arch, seen Cache) (QEMU, error) {
	if seen == nil {
		seen = forgetful{}
	}
	path, err := exec.LookPath(programs[arch])
	if err != nil {
		return QEMU{}, fmt.Errorf("%w: no %s on PATH: %s", ErrNoQEMU, programs[arch], installHint(arch))
	}
	st, err := os.Stat(path)
	if err != nil {
		return QEMU{}, fmt.Errorf("%w: %v", ErrNoQEMU, err)
	}
	q := QEMU{Path: path, ID: fmt.Sprintf("%s:%d:%d", path, st.Size(), st.ModTime().UnixNano())}
	if text, ok := seen.Get("program " + q.ID); ok && json.Unmarshal([]byte(text), &q.probed) == nil {
		return q, nil
	}
	if q.probed, err = probe(ctx, path); err != nil {
		return QEMU{}, err
	}
	if err := checkVersion(q.Version); err != nil {
		return QEMU{}, fmt.Errorf("%w: %s is version %s, %d.%d is needed: %s", ErrOldQEMU, path, q.Version, minMajor, minMinor, installHint(arch))
	}
	if text, err := json.Marshal(q.probed); err == nil {
		seen.Put("program "+q.ID, string(text))
	}
	return q, nil
}

var versionPattern = regexp.MustCompile(`QEMU emulator version (\d+\.\d+(?:\.\d+)?)`)

// probe asks a program for its version, behind the option that a build without a
// system call filter refuses.
func probe(ctx context.Context, path string) (probed, error) {
	version, err := queryVersion(ctx, path, "-sandbox", sandboxOptions)
	if err == nil {
		return probed{version, true}, nil
	}
	version, err = queryVersion(ctx, path)
	return probed{Version: version}, err
}

func queryVersion(ctx context.Context, path string, options ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, append(options, "--version")...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			err = fmt.Errorf("%w: %s", err, lastLine(string(exit.Stderr)))
		}
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("ask %s for its version: it says %.80q", path, out)
	}
	return string(m[1]), nil
}

func checkVersion(v string) error {
	var major, minor int
	if _, err := fmt.Sscanf(v, "%d.%d", &major, &minor); err != nil {
		return err
	}
	if major < minMajor || (major == minMajor && minor < minMinor) {
		return errors.New("too old: " + strconv.Itoa(major))
	}
	return nil
}

// installHint says how to get QEMU on this system.
func installHint(arch Arch) string {
	if runtime.GOOS == "darwin" {
		return "`brew install qemu`"
	}
	pkg := map[Arch]string{AMD64: "qemu-system-x86", ARM64: "qemu-system-arm"}[arch]
	return fmt.Sprintf("on Debian and Ubuntu `apt-get install --no-install-recommends %s`, or your distribution's package of that sort", pkg)
}
