package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/ext4"
)

// Overheads of an ext4 disk: inode tables, bitmaps and a margin.
const (
	ext4Slack     = 24 << 20
	ext4BlockSize = 4096
	ext4Reserved  = 64 // inodes that the tree can't use: the first ten are the filesystem's
)

// maxExt4Name bounds a name's bytes. The filesystem allows 255, but go-diskfs panics on names of more than 247.
const maxExt4Name = 247

// writeExt4 writes a tree as a bare ext4 disk, without a partition table.
//
// It has 4 KiB blocks and no journal. disk.CreateFilesystem would give 1 KiB blocks and a journal. They take three
// times as long to write, and a read-only disk needs no journal.
func writeExt4(name string, t tree) (err error) {
	total := int64(ext4Slack)
	for _, n := range t {
		if base := path.Base(n.path); len(base) > maxExt4Name {
			return fmt.Errorf("%.80q is a name of %d bytes: a disk has %d at most", base, len(base), maxExt4Name)
		}
		size, err := n.size()
		if err != nil {
			return err
		}
		total += (size + 2*ext4BlockSize - 1) / ext4BlockSize * ext4BlockSize
	}
	// Folders and links may use no block, but each uses an inode.
	total = max(total, int64(len(t)+ext4Reserved)*ext4.DefaultInodeRatio)
	total = (total + 1<<20 - 1) >> 20 << 20
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if err := f.Truncate(total); err != nil {
		return err
	}
	disk, err := ext4.Create(file.New(f, false), total, 0, 512, &ext4.Params{
		SectorsPerBlock: ext4BlockSize / 512,
		VolumeName:      "unitask",
		Features: []ext4.FeatureOpt{
			ext4.WithFeatureHasJournal(false),
			ext4.WithFeatureReservedGDTBlocksForExpansion(false),
		},
	})
	if err != nil {
		return err
	}
	if err := filled(disk, t); err != nil {
		return err
	}
	if err := disk.Close(); err != nil {
		return err
	}
	if err := punchZeros(f); err != nil {
		return err
	}
	return f.Chmod(0o444)
}

// filled is like fill, but returns an error if go-diskfs panics, as it has done. Some data comes from other hosts; a
// panic must end one run only.
func filled(disk *ext4.FileSystem, t tree) (err error) {
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("the disk can't be written: %v", what)
		}
	}()
	return fill(disk, t)
}

// punchZeros frees the blocks of zeros in a file: go-diskfs writes all of its tables, and files contain zeros, too.
func punchZeros(f *os.File) error {
	buf, zeros := make([]byte, 1<<20), make([]byte, ext4BlockSize)
	for at := int64(0); ; at += int64(len(buf)) {
		n, err := f.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		first := -1 // first of the blocks of zeros before i
		for i := 0; i <= n; i += ext4BlockSize {
			switch zero := i < n && bytes.HasPrefix(buf[i:n], zeros); {
			case zero && first < 0:
				first = i
			case !zero && first >= 0:
				punch(f, at+int64(first), int64(i-first))
				first = -1
			}
		}
		if err != nil {
			return nil
		}
	}
}
