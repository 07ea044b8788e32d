package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sort"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/ext4"
	"github.com/diskfs/go-diskfs/partition/mbr"

	"github.com/unitask/unitask/image/tfs"
	"github.com/unitask/unitask/internal/atomicfile"
)

// Entry is one file of an image's root filesystem.
type Entry struct {
	Path   string      `json:"path"`
	Mode   fs.FileMode `json:"mode"` // Nanos has no permissions: 0777
	Size   int64       `json:"size"`
	Target string      `json:"target,omitempty"` // of a link
}

// Entries reads the root filesystem back from the image's disk, sorted by path.
func (im *Image) Entries() ([]Entry, error) {
	f, err := os.Open(im.Path(DiskFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if list, err := packedEntries(f, st.Size()); list != nil || err != nil {
		return list, err
	}
	storage := file.New(f, true)
	var root fs.FS
	if im.Kernel == Nanos {
		table, err := mbr.Read(storage, sectorSize, sectorSize)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", im.Path(DiskFile), err)
		}
		var last *mbr.Partition
		for _, p := range table.Partitions {
			if p.Size > 0 {
				last = p
			}
		}
		if last == nil {
			return nil, fmt.Errorf("read %s: no partitions", im.Path(DiskFile))
		}
		root, err = tfs.Read(storage, st.Size()-last.GetStart(), last.GetStart())
		if err != nil {
			return nil, err
		}
	} else if root, err = ext4.Read(storage, st.Size(), 0, sectorSize); err != nil {
		return nil, fmt.Errorf("read %s: %w", im.Path(DiskFile), err)
	}
	var list []Entry
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := Entry{Path: "/" + name, Mode: info.Mode(), Size: info.Size()}
		if links, ok := root.(interface{ Readlink(string) (string, error) }); ok && d.Type() == fs.ModeSymlink {
			e.Target, _ = links.Readlink(name)
		}
		if d.IsDir() {
			e.Size = 0
		}
		list = append(list, e)
		return nil
	})
	sort.Slice(list, func(i, j int) bool { return list[i].Path < list[j].Path })
	return list, err
}

// Export writes the image's disk to a separate file, and replaces that file in one step. Only a nanos disk boots by
// itself.
func (im *Image) Export(to string) error {
	if im.Kernel != Nanos {
		return fmt.Errorf(
			"export %s: a %s image is a kernel, an initramfs and a disk; only a nanos image is one disk that boots by itself",
			to, im.Kernel)
	}
	from, err := os.Open(im.Path(DiskFile))
	if err != nil {
		return err
	}
	defer from.Close()
	st, err := from.Stat()
	if err != nil {
		return err
	}
	err = atomicfile.Fill(to, 0o644, func(f *os.File) error {
		return errors.Join(copySparse(f, from), f.Truncate(st.Size()))
	})
	if err != nil {
		return fmt.Errorf("export %s: %w", to, err)
	}
	return nil
}

// copySparse copies data and leaves a hole for each megabyte of zeros.
func copySparse(to *os.File, from io.Reader) error {
	buf, zeros := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); ; {
		n, err := io.ReadFull(from, buf)
		if n > 0 && string(buf[:n]) != string(zeros[:n]) {
			if _, err := to.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
