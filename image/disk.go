package image

import (
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/disk"
	"github.com/diskfs/go-diskfs/filesystem"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	"github.com/diskfs/go-diskfs/partition/mbr"

	"github.com/unitask/unitask/image/tfs"
)

// A Nanos disk (nanos/src/boot/stage1.s, tools/mkfs.c, src/kernel/storage.c):
//
//	sector 0     MBR: boot code, the region record at 426, the partition table
//	sector 1 on  the second boot stage (the rest of boot.img)
//	4 KiB        where the kernel dumps its log when it dies
//	             partitions: [EFI system,] boot (kernel and klibs), root
//
// The kernel takes the last two partitions by their position; it ignores their types. The root filesystem reaches to
// the disk's end.
const (
	sectorSize     = 512
	mbrSize        = 512
	klogDump       = 4 << 10
	bootPartition  = 12 << 20
	efiPartition   = 33 << 20
	firstSector    = 9 // without boot.img: MBR and log dump
	efiSystem      = mbr.Type(0xef)
	linuxPartition = mbr.Type(0x83)
)

// nanosDisk describes a disk for writeNanosDisk.
type nanosDisk struct {
	boot      []byte // boot.img, or nil if the machine loads the kernel itself
	efi       string // the UEFI loader's file, or ""
	efiName   string // its name in EFI/Boot
	kernel    string // the kernel's file
	klibs     map[string]string
	root      tree
	rootTuple tfs.Tuple
	uuid      [16]byte
	slack     int64 // free bytes of the root filesystem
}

// writeNanosDisk writes a disk that boots by itself and with -kernel.
func writeNanosDisk(name string, d nanosDisk) (err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	table, size, err := d.layout()
	if err != nil {
		return err
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	storage := file.New(f, false)
	dsk := &disk.Disk{Backend: storage, Size: size, LogicalBlocksize: sectorSize, PhysicalBlocksize: sectorSize}
	if _, err := f.WriteAt(d.boot, 0); err != nil {
		return err
	}
	if err := dsk.Partition(table); err != nil {
		return err
	}
	parts := table.Partitions
	if d.efi != "" {
		if err := d.writeEFI(dsk, parts[0]); err != nil {
			return fmt.Errorf("EFI partition: %w", err)
		}
		parts = parts[1:]
	}
	bootTree := tree{}
	bootTree.file("/kernel", 0o644, d.kernel)
	for klib, source := range d.klibs {
		bootTree.file("/klib/"+klib, 0o644, source)
	}
	// Use another identifier than the root's: the kernel finds volumes by it.
	bootUUID := d.uuid
	bootUUID[0] ^= 0xff
	if err := writeTFS(dsk, parts[0], bootTree, tfs.Params{UUID: bootUUID}); err != nil {
		return fmt.Errorf("boot partition: %w", err)
	}
	if err := writeTFS(dsk, parts[1], d.root, tfs.Params{UUID: d.uuid, Attributes: d.rootTuple}); err != nil {
		return fmt.Errorf("root partition: %w", err)
	}
	return f.Chmod(0o444)
}

// layout returns the partition table and the size of the disk.
func (d *nanosDisk) layout() (*mbr.Table, int64, error) {
	rootSize := d.slack
	for _, n := range d.root {
		size, err := n.size()
		if err != nil {
			return nil, 0, err
		}
		rootSize += (size + 2*sectorSize - 1) / sectorSize * sectorSize
	}
	next := int64(firstSector)
	if len(d.boot) > mbrSize {
		next = (int64(len(d.boot)) + klogDump + sectorSize - 1) / sectorSize
	}
	table := &mbr.Table{LogicalSectorSize: sectorSize, PhysicalSectorSize: sectorSize}
	add := func(kind mbr.Type, size int64) {
		sectors := (size + sectorSize - 1) / sectorSize
		table.Partitions = append(table.Partitions, &mbr.Partition{
			Index: len(table.Partitions) + 1, Bootable: true, Type: kind, Start: uint32(next), Size: uint32(sectors),
		})
		next += sectors
	}
	if d.efi != "" {
		add(efiSystem, efiPartition)
	}
	add(linuxPartition, bootPartition)
	add(linuxPartition, (rootSize+1<<20-1)>>20<<20)
	return table, next * sectorSize, nil
}

func (d *nanosDisk) writeEFI(dsk *disk.Disk, p *mbr.Partition) error {
	efi, err := fat32.Create(dsk.Backend, p.GetSize(), p.GetStart(), sectorSize, "EFI", true)
	if err != nil {
		return err
	}
	for _, dir := range []string{"EFI", "EFI/Boot"} {
		if err := efi.Mkdir(dir); err != nil {
			return err
		}
	}
	if err := copyIn(efi, "EFI/Boot/"+d.efiName, node{path: d.efiName, source: d.efi}, make([]byte, 1<<20)); err != nil {
		return err
	}
	return efi.Close()
}

// writeTFS fills a partition with a tree.
func writeTFS(dsk *disk.Disk, p *mbr.Partition, t tree, params tfs.Params) error {
	f, err := tfs.Create(dsk.Backend, p.GetSize(), p.GetStart(), params)
	if err != nil {
		return err
	}
	if err := fill(f, t); err != nil {
		return err
	}
	return f.Close()
}

// fill puts a tree into a go-diskfs filesystem.
func fill(f filesystem.FileSystem, t tree) error {
	buf := make([]byte, 1<<20)
	for _, n := range t.sorted() {
		p := n.path[1:] // go-diskfs accepts no leading slash
		var err error
		switch n.mode.Type() {
		case fs.ModeDir:
			err = f.Mkdir(p)
		case fs.ModeSymlink:
			err = f.Symlink(n.target, p)
		default:
			err = copyIn(f, p, n, buf)
		}
		if err == nil && n.mode.Type() != fs.ModeSymlink {
			err = f.Chmod(p, n.mode.Perm())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", n.path, err)
		}
	}
	return nil
}

// copyIn streams a file's content into a filesystem, through a buffer.
func copyIn(f filesystem.FileSystem, p string, n node, buf []byte) error {
	src, _, err := n.open()
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := f.OpenFile(p, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return err
	}
	if _, err := io.CopyBuffer(dst, onlyReader{src}, buf); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}

// onlyReader hides a file's WriterTo, which would copy in small pieces.
type onlyReader struct{ io.Reader }
