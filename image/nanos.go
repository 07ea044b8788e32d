package image

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image/tfs"
)

// nanosPart is the part that holds a Nanos release.
const nanosPart = "nanos"

// Names in a Nanos release.
const (
	nanosKernel = "kernel.img"
	nanosBoot   = "boot.img" // amd64 only
	nanosKlibs  = "klibs"
)

// efiLoader names the UEFI loader in a release and in EFI/Boot.
func efiLoader(arch Arch) string {
	if arch == ARM64 {
		return "bootaa64.efi"
	}
	return "bootx64.efi"
}

// sandboxKlib gives the guest unveil: protected files become read-only once the agent has written its files.
const sandboxKlib = "sandbox"

// straceKlib makes the kernel write each system call to its console (nanos/klib/strace.c).
const straceKlib = "strace"

// errNoStrace means that a release lacks straceKlib.
var errNoStrace = errors.New(
	"the Nanos release in the vendor store has no klibs/strace, which tells of system calls: " +
		"take it with `unitask image vendor --nanos`, or --from DIR for one that has it; or use --kernel linux")

// nanosScratch bounds the bytes that the guest's filesystem can hold in addition; so does the machine's memory. The
// disk is read-only to QEMU, and what the guest writes stays in its page cache.
const nanosScratch = 512 << 20

// nanosTree returns the root filesystem of the nanos guest.
func (s *Store) nanosTree(arch Arch) (tree, []Part, error) {
	t, parts, err := s.payloadTree(Nanos, arch)
	if err != nil {
		return nil, nil, err
	}
	t.text("/proc/self/cmdline", strings.Join(s.payload.Args, "\x00")+"\x00")
	t.text("/proc/self/comm", s.payload.Args[0]+"\n")
	for _, dir := range []string{"/tmp", contract.OutDir, contract.WorkDir, contract.HomeDir, "/dev/shm"} {
		t.dir(dir, 0o777)
	}
	t.link("/var/tmp", "../tmp") // the code may write to it
	for name, text := range nanosTexts {
		t.text(name, text)
	}
	for name, target := range nanosLinks {
		t.link(name, target)
	}
	return t, parts, nil
}

// nanosTexts are files of /proc and /dev that programs read, in Linux's form (proc(5)). Files that are empty here only
// exist; guest/nanos/special.c generates their content when they are opened.
var nanosTexts = map[string]string{
	"/proc/self/stat":            "",
	"/proc/self/statm":           "",
	"/proc/self/status":          "",
	"/proc/self/cgroup":          "0::/\n",
	"/proc/stat":                 "",
	"/proc/uptime":               "",
	"/proc/loadavg":              "0.00 0.00 0.00 1/1 2\n",
	"/proc/version":              "Nanos version 5.0\n",
	"/proc/filesystems":          "\ttfs\n",
	"/proc/cpuinfo":              "processor\t: 0\nmodel name\t: virtual\ncpu MHz\t\t: 1000.000\n\n",
	"/proc/sys/kernel/hostname":  contract.Hostname + "\n",
	"/proc/sys/kernel/ostype":    "Nanos\n",
	"/proc/sys/kernel/osrelease": "5.0\n",
	"/dev/zero":                  "",
}

// nanosLinks maps the names that programs use to those of the kernel or of libc.
var nanosLinks = map[string]string{
	"/dev/random": "/dev/urandom", "/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
	"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
}

// nanosRoot returns the root tuple's configuration: exactly these keys.
func nanosRoot(p Payload, klibs map[string]string) tfs.Tuple {
	var args []tfs.Value
	for _, arg := range slices.Concat(p.Args[:1], p.NanosArgs, p.Args[1:]) {
		args = append(args, arg)
	}
	var env tfs.Tuple
	for _, variable := range p.Env {
		name, value, _ := strings.Cut(variable, "=")
		env = append(env, tfs.Pair{Name: name, Value: value})
	}
	t := tfs.Tuple{
		{Name: "program", Value: p.Program},
		{Name: "arguments", Value: args},
		{Name: "environment", Value: env},
		{Name: "cwd", Value: contract.WorkDir},
		// Set the one address without DHCP's round trip, and Ethernet's MTU instead of Nanos's default of 1460.
		{Name: "en1", Value: tfs.Tuple{
			{Name: "ipaddr", Value: contract.GuestIP}, {Name: "netmask", Value: contract.Netmask},
			{Name: "gateway", Value: contract.GatewayIP}, {Name: "mtu", Value: "1500"}}},
		// The machine exits with the program, and its exit code tells how.
		{Name: "debug_exit", Value: "t"},
	}
	if len(klibs) > 0 {
		t = append(t, tfs.Pair{Name: "klibs", Value: "bootfs"})
	}
	if klibs[sandboxKlib] != "" {
		t = append(t, tfs.Pair{Name: "sandbox", Value: tfs.Tuple{{Name: "unveil", Value: tfs.Tuple{}}}})
	}
	if klibs[straceKlib] != "" {
		t = append(t, tfs.Pair{Name: "debugsyscalls", Value: "t"})
	}
	return t
}

// buildNanos writes kernel and disk.img into dir.
func (s *Store) buildNanos(ctx context.Context, arch Arch, digest, dir string) ([]Part, string, error) {
	t, parts, err := s.nanosTree(arch)
	if err != nil {
		return nil, "", err
	}
	if err := s.Parts().compileTree(ctx, t, arch, dir); err != nil {
		return nil, "", err
	}
	release, err := s.Parts().Get(arch, nanosPart)
	if err != nil {
		return nil, "", err
	}
	d := nanosDisk{kernel: release.path(nanosKernel), root: t, slack: nanosScratch, klibs: map[string]string{}}
	if klib := release.path(nanosKlibs, sandboxKlib); exists(klib) {
		d.klibs[sandboxKlib] = klib
	}
	if s.tracing {
		klib := release.path(nanosKlibs, straceKlib)
		if !exists(klib) {
			return nil, "", errNoStrace
		}
		d.klibs[straceKlib] = klib
	}
	d.rootTuple = nanosRoot(s.payload, d.klibs)
	if arch == AMD64 {
		if d.boot, err = os.ReadFile(release.path(nanosBoot)); err != nil {
			return nil, "", err
		}
	}
	if loader := release.path(efiLoader(arch)); exists(loader) {
		d.efi, d.efiName = loader, efiLoader(arch)
	}
	sum, err := hex.DecodeString(digest)
	if err != nil {
		return nil, "", err
	}
	copy(d.uuid[:], sum)
	kernel, err := os.ReadFile(d.kernel)
	if err != nil {
		return nil, "", err
	}
	if err := os.WriteFile(filepath.Join(dir, KernelFile), kernel, 0o444); err != nil {
		return nil, "", err
	}
	if err := writeNanosDisk(filepath.Join(dir, DiskFile), d); err != nil {
		return nil, "", fmt.Errorf("write disk: %w", err)
	}
	version := release.Version
	if s.tracing {
		version += "+" + straceKlib
	}
	return append(parts, release), version, nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// takeNanos copies a Nanos release from a folder into a part, and checks that it is for arch.
func takeNanos(arch Arch, from, dir string) (Part, error) {
	names := []string{nanosKernel, nanosBoot, efiLoader(arch), filepath.Join(nanosKlibs, sandboxKlib),
		filepath.Join(nanosKlibs, straceKlib)}
	h := sha256.New()
	for _, name := range names {
		text, err := readBounded(filepath.Join(from, name), maxNanosFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Part{}, err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return Part{}, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return Part{}, err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
	}
	part, err := describeNanos(arch, dir)
	part.Digest = "sha256-" + hex.EncodeToString(h.Sum(nil))
	return part, err
}

// describeNanos returns the part for a release that the user provided, whose version is unknown.
func describeNanos(arch Arch, dir string) (Part, error) {
	return Part{Name: nanosPart, Version: "local", From: "file", License: "Apache-2.0", FirstSeen: true},
		checkNanos(arch, dir)
}

// maxNanosFile bounds each file of a release; the kernel has some two megabytes.
const maxNanosFile = 64 << 20

func readBounded(name string, limit int64) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > limit {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", name, limit)
	}
	return os.ReadFile(name)
}

// checkNanos refuses a release that can't boot on arch, and names the reason.
func checkNanos(arch Arch, dir string) error {
	name := filepath.Join(dir, nanosKernel)
	f, err := elf.Open(name)
	if err != nil {
		return fmt.Errorf("%s is no kernel: %w", nanosKernel, err)
	}
	defer f.Close()
	want := map[Arch]elf.Machine{AMD64: elf.EM_X86_64, ARM64: elf.EM_AARCH64}[arch]
	if f.Machine != want {
		return fmt.Errorf("%s is for %s, not for %s (%s)", nanosKernel, f.Machine, arch, want)
	}
	for _, p := range f.Progs {
		st, err := os.Stat(name)
		if err != nil {
			return err
		}
		if p.Off+p.Filesz > uint64(st.Size()) {
			return fmt.Errorf("%s is cut: a segment ends at byte %d of %d", nanosKernel, p.Off+p.Filesz, st.Size())
		}
	}
	if arch != AMD64 {
		return nil
	}
	boot, err := readBounded(filepath.Join(dir, nanosBoot), maxNanosFile)
	if err != nil {
		return err
	}
	if len(boot) < 2*mbrSize || boot[510] != 0x55 || boot[511] != 0xaa {
		return fmt.Errorf("%s is no boot loader: no signature at the end of its first sector", nanosBoot)
	}
	return nil
}
