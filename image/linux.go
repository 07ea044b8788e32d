package image

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/pierrec/lz4/v4"
)

// modules are the drivers the guest's machine needs, in the order in which they
// must be loaded. Debian's cloud kernel has all of virtio as modules; one that
// is missing from a package is built in there.
var modules = []string{"virtio_ring", "virtio", "virtio_mmio", "virtio_blk", "failover", "net_failover", "virtio_net"}

func wantedModule(base string) bool {
	for _, m := range modules {
		if base == m+".ko" {
			return true
		}
	}
	return false
}

// busyboxTools are the names under which the guest's child processes find
// busybox.
var busyboxTools = []string{"sh", "ash", "awk", "base64", "basename", "bunzip2", "bzip2", "cat", "chmod", "cksum", "cmp", "cp", "cut",
	"date", "dd", "df", "diff", "dirname", "du", "echo", "egrep", "env", "expr", "false", "fgrep", "find", "free", "grep", "gunzip", "gzip",
	"head", "hexdump", "hostname", "id", "kill", "killall", "ln", "ls", "md5sum", "mkdir", "mkfifo", "mktemp", "mv", "nc", "nl", "nproc",
	"od", "paste", "pidof", "printf", "ps", "pwd", "readlink", "realpath", "rev", "rm", "rmdir", "sed", "seq", "sha1sum", "sha256sum",
	"sha512sum", "shuf", "sleep", "sort", "split", "stat", "strings", "tac", "tail", "tar", "tee", "test", "timeout", "touch", "tr",
	"true", "truncate", "tty", "uname", "uniq", "unxz", "unzip", "uptime", "wc", "wget", "which", "who", "whoami", "xargs", "xxd", "yes", "zcat"}

// linuxTree is the root disk of the linux guest.
func (s *Store) linuxTree(arch Arch) (tree, []Part, error) {
	t, parts, err := s.payloadTree(arch)
	if err != nil {
		return nil, nil, err
	}
	box, err := s.Part(arch, "busybox")
	if err != nil {
		return nil, nil, err
	}
	t.file("/usr/bin/busybox", 0o755, box.path("root/bin/busybox"))
	for _, tool := range busyboxTools {
		t.link("/usr/bin/"+tool, "busybox")
	}
	return t, append(parts, box), nil
}

// buildLinux writes kernel, initrd and disk.img into dir.
func (s *Store) buildLinux(arch Arch, dir string) ([]Part, string, error) {
	t, parts, err := s.linuxTree(arch)
	if err != nil {
		return nil, "", err
	}
	kernel, err := s.Part(arch, "linux")
	if err != nil {
		return nil, "", err
	}
	guest, err := s.Part(arch, guestPart)
	if err != nil {
		return nil, "", err
	}
	parts = append(parts, kernel)
	vmlinuz, err := os.ReadFile(kernel.path("vmlinuz"))
	if err != nil {
		return nil, "", err
	}
	if err := os.WriteFile(filepath.Join(dir, KernelFile), bootableKernel(vmlinuz), 0o444); err != nil {
		return nil, "", err
	}
	if err := writeInitramfs(filepath.Join(dir, InitrdFile), guest.path("init"), kernel.path("modules")); err != nil {
		return nil, "", fmt.Errorf("write initramfs: %w", err)
	}
	if err := writeExt4(filepath.Join(dir, DiskFile), t); err != nil {
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

// bootableKernel returns the ELF inside an LZ4-compressed bzImage, which QEMU
// enters by its PVH note without decompressing anything, or the file as it is.
func bootableKernel(bz []byte) []byte {
	if len(bz) < bzHeaderEnd || string(bz[bzMagic-0x202+0x202:bzMagic+4]) != "HdrS" {
		return bz
	}
	start := (int64(bz[bzSetupSects])+1)*512 + int64(binary.LittleEndian.Uint32(bz[bzPayloadOffset:]))
	end := start + int64(binary.LittleEndian.Uint32(bz[bzPayloadLength:]))
	if end > int64(len(bz)) || end-start < 8 || !bytes.HasPrefix(bz[start:], lz4Legacy) {
		return bz
	}
	// The payload's last four bytes are the size it unpacks to.
	size := binary.LittleEndian.Uint32(bz[end-4:])
	if size > maxVmlinux {
		return bz
	}
	elf := make([]byte, size)
	if _, err := io.ReadFull(lz4.NewReader(bytes.NewReader(bz[start:end-4])), elf); err != nil || !bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return bz
	}
	return elf
}

// writeInitramfs writes a cpio archive in the newc form (Linux,
// Documentation/driver-api/early-userspace/buffer-format.rst) that holds PID 1
// and the drivers it loads.
func writeInitramfs(name, init, moduleDir string) error {
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
	for _, m := range modules {
		data, err := os.ReadFile(filepath.Join(moduleDir, m+".ko"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		add("modules/"+m+".ko", 0o100644, data)
		fmt.Fprintf(&order, "/modules/%s.ko\n", m)
	}
	add("modules/order", 0o100644, order.Bytes())
	add("TRAILER!!!", 0, nil)
	return os.WriteFile(name, out.Bytes(), 0o444)
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
