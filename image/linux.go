package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pierrec/lz4/v4"

	"github.com/unitask/unitask/guest/contract"
)

// modules are the drivers that the guest's machine needs, in load order. Debian's cloud kernel has all of virtio as
// modules. A driver that a package lacks is built into its kernel.
var modules = []string{"virtio_ring", "virtio", "virtio_mmio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev",
	pciModule, "virtio_blk", "failover", "net_failover", "virtio_net"}

// pciModule is the driver for machines with PCI instead of virtio-mmio (q35).
const pciModule = "virtio_pci"

// overlayModule lays memory over the disk of a container's image, and over the folders of other images that stay on the
// disk.
const overlayModule = "overlay"

// packedModules read a compressed disk: erofs, and what it needs if that is not built in.
var packedModules = []string{"lz4_decompress", "libcrc32c", erofsModule}

const erofsModule = "erofs"

func wantedModule(base string) bool {
	for _, m := range slices.Concat(modules, packedModules, []string{overlayModule}) {
		if rest, ok := strings.CutPrefix(base, m+".ko"); ok && (rest == "" || slices.Contains(moduleSuffixes, rest)) {
			return true
		}
	}
	return false
}

// moduleSuffixes are the compressions of distributions' modules. The guest's init loads them unpacked.
var moduleSuffixes = []string{".xz", ".zst", ".gz"}

// maxModule bounds the unpacked size of a module; no driver in use has a tenth of it.
const maxModule = 16 << 20

// readModule returns a module of the folder, unpacked, or an error that wraps fs.ErrNotExist.
func readModule(dir, name string) ([]byte, error) {
	for _, suffix := range append([]string{""}, moduleSuffixes...) {
		f, err := os.Open(filepath.Join(dir, name+".ko"+suffix))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		z, err := decompress(f)
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", f.Name(), err)
		}
		defer z.Close()
		data, err := io.ReadAll(io.LimitReader(z, maxModule+1))
		if err == nil && len(data) > maxModule {
			err = fmt.Errorf("more than %d bytes", maxModule)
		}
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", f.Name(), err)
		}
		return data, nil
	}
	return nil, fmt.Errorf("module %s: %w", name, fs.ErrNotExist)
}

// busyboxTools are the names under which the guest's child processes find busybox.
var busyboxTools = []string{"sh", "ash", "awk", "base64", "basename", "bunzip2", "bzip2", "cat", "chmod", "cksum",
	"cmp", "cp", "cut",
	"date", "dd", "df", "diff", "dirname", "du", "echo", "egrep", "env", "expr", "false", "fgrep", "find", "free", "grep",
	"gunzip", "gzip",
	"head", "hexdump", "hostname", "id", "kill", "killall", "ln", "ls", "md5sum", "mkdir", "mkfifo", "mktemp", "mv", "nc",
	"nl", "nproc",
	"od", "paste", "pidof", "printf", "ps", "pwd", "readlink", "realpath", "rev", "rm", "rmdir", "sed", "seq", "sha1sum",
	"sha256sum",
	"sha512sum", "shuf", "sleep", "sort", "split", "stat", "strings", "tac", "tail", "tar", "tee", "test", "timeout",
	"touch", "tr",
	"true", "truncate", "tty", "uname", "uniq", "unxz", "unzip", "uptime", "wc", "wget", "which", "who", "whoami", "xargs",
	"xxd", "yes", "zcat"}

// linuxTree returns the root disk of the linux guest.
func (s *Store) linuxTree(arch Arch) (tree, []Part, error) {
	t, parts, err := s.payloadTree(Linux, arch)
	if err != nil {
		return nil, nil, err
	}
	box, err := s.Parts().Get(arch, "busybox")
	if err != nil {
		return nil, nil, err
	}
	t.file("/usr/bin/busybox", 0o755, box.path("root/bin/busybox"))
	for _, tool := range busyboxTools {
		if _, there := t["/usr/bin/"+tool]; !there {
			t.link("/usr/bin/"+tool, "busybox")
		}
	}
	return t, append(parts, box), nil
}

// buildLinux writes kernel, initrd and disk.img into dir.
func (s *Store) buildLinux(ctx context.Context, arch Arch, dir string) ([]Part, string, error) {
	var t tree
	var parts []Part
	var err error
	if s.container == nil {
		t, parts, err = s.linuxTree(arch)
	}
	if err != nil {
		return nil, "", err
	}
	if err := s.Parts().compileTree(ctx, t, arch, dir); err != nil {
		return nil, "", err
	}
	if own := s.payload.Custom; own != nil { // after the compilation on the host, which must not find them
		if err := own.Verify(); err != nil {
			return nil, "", err
		}
		if err := t.add(own); err != nil {
			return nil, "", err
		}
	}
	kernel, err := s.Parts().Get(arch, kernelPart)
	if err != nil {
		return nil, "", err
	}
	guest, err := s.Parts().Get(arch, s.Parts().guestPart())
	if err != nil {
		return nil, "", err
	}
	parts = append(parts, kernel)
	vmlinuz, err := os.ReadFile(kernel.path("vmlinuz"))
	if err != nil {
		return nil, "", err
	}
	if err := writeSparse(filepath.Join(dir, KernelFile), bootableKernel(vmlinuz), 0o444); err != nil {
		return nil, "", err
	}
	files, err := s.initFiles(guest)
	if err != nil {
		return nil, "", err
	}
	drivers := slices.Clone(modules)
	if len(files)+len(s.payload.Folders) > 0 {
		drivers = append(drivers, overlayModule)
	}
	packed, err := s.packs(kernel)
	if err != nil {
		return nil, "", err
	}
	if packed {
		drivers = append(drivers, packedModules...)
	}
	if err := writeInitramfs(filepath.Join(dir, InitrdFile), guest.path("init"), kernel.path("modules"), files,
		drivers); err != nil {
		return nil, "", fmt.Errorf("write initramfs: %w", err)
	}
	if s.container != nil {
		parts = append(parts, guest)
		return parts, kernel.Version, s.container.linkRoot(filepath.Join(dir, DiskFile))
	}
	write := writeExt4
	if packed {
		write = func(name string, t tree) error { return s.writePacked(name, t, arch) }
	}
	if err := write(filepath.Join(dir, DiskFile), t); err != nil {
		return nil, "", fmt.Errorf("write root disk: %w", err)
	}
	return parts, kernel.Version, nil
}

// Offsets in a bzImage's setup header (Linux, Documentation/x86/boot.rst).
const (
	bzSetupSects    = 0x1f1 // u8: 512-byte sectors of set-up code after the first
	bzMagic         = 0x202 // "HdrS"
	bzPayloadOffset = 0x248 // u32, from the end of the set-up code
	bzPayloadLength = 0x24c // u32
	bzHeaderEnd     = 0x250
	maxVmlinux      = 256 << 20 // far above any distribution's kernel
)

var lz4Legacy = []byte{0x02, 0x21, 0x4c, 0x18}

// bootableKernel returns the ELF inside a compressed bzImage, or the file as it is. QEMU enters the ELF by its PVH
// note, without decompressing anything.
func bootableKernel(bz []byte) []byte {
	if len(bz) < bzHeaderEnd || string(bz[bzMagic:bzMagic+4]) != "HdrS" {
		return bz
	}
	start := (int64(bz[bzSetupSects])+1)*512 + int64(binary.LittleEndian.Uint32(bz[bzPayloadOffset:]))
	end := start + int64(binary.LittleEndian.Uint32(bz[bzPayloadLength:]))
	if end > int64(len(bz)) || end-start < 8 {
		return bz
	}
	// The payload's last four bytes are the unpacked size.
	size := binary.LittleEndian.Uint32(bz[end-4:])
	if size > maxVmlinux {
		return bz
	}
	payload := bz[start : end-4]
	var unpacked io.Reader = lz4.NewReader(bytes.NewReader(payload))
	if !bytes.HasPrefix(payload, lz4Legacy) {
		z, err := decompress(bytes.NewReader(payload))
		if err != nil {
			return bz
		}
		defer z.Close()
		unpacked = z
	}
	elf := make([]byte, size)
	if _, err := io.ReadFull(unpacked, elf); err != nil || !bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return bz
	}
	return elf
}

// initramfsPage is the multiple to which an initramfs is padded; the kernel skips zeros.
const initramfsPage = 4096

// writeInitramfs writes a cpio archive in the newc form (Linux,
// Documentation/driver-api/early-userspace/buffer-format.rst). It holds PID 1, the drivers it loads, and files: the
// programs and texts for a container, by their paths.
func writeInitramfs(name, init, moduleDir string, files map[string][]byte, drivers []string) error {
	var out bytes.Buffer
	ino := 0
	add := func(name string, mode uint32, data []byte) {
		ino++
		fmt.Fprintf(&out, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
			ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
		pad(&out)
		out.Write(data)
		pad(&out)
	}
	text, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	add("dev", 0o040755, nil)
	// The kernel opens /dev/console for PID 1 before devtmpfs is there.
	out.WriteString("070701")
	ino++
	for _, v := range []int{ino, 0o020600, 0, 0, 1, 0, 0, 0, 0, 5, 1, len("dev/console") + 1, 0} {
		fmt.Fprintf(&out, "%08x", v)
	}
	out.WriteString("dev/console\x00")
	pad(&out)
	add("init", 0o100755, text)
	add("modules", 0o040755, nil)
	var order bytes.Buffer
	for _, m := range drivers {
		data, err := readModule(moduleDir, m)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		add("modules/"+m+".ko", 0o100644, data)
		fmt.Fprintf(&order, "/modules/%s.ko\n", m)
	}
	add("modules/order", 0o100644, order.Bytes())
	for _, dir := range []string{contract.UnitaskDir, contract.LibDir} {
		if len(files) > 0 {
			add(dir[1:], 0o040755, nil)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		add(name[1:], 0o100755, files[name])
	}
	add("TRAILER!!!", 0, nil)
	// QEMU puts the archive at the end of the memory, from a page's beginning. An end within a page may overlap
	// microvm's ACPI tables, and the kernel then stops silently.
	out.Write(make([]byte, -out.Len()&(initramfsPage-1)))
	return os.WriteFile(name, out.Bytes(), 0o444)
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
