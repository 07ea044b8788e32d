package erofs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// Bounds on what is read.
const (
	maxRead   = 1 << 20  // entries: an image has some ten thousand
	maxFolder = 64 << 20 // bytes of a folder's names
	maxDepth  = 64       // levels of nested folders
)

var errMalformed = errors.New("malformed erofs disk")

// Info describes an entry of a disk.
type Info struct {
	Path   string
	Mode   fs.FileMode
	Size   int64  // of a file
	Target string // of a link

	number uint64
}

// reader reads a disk that this package has written.
type reader struct {
	r    io.ReaderAt
	size int64
	base int64 // of the inodes
	list []Info
}

// Is reports whether a disk has an erofs filesystem.
func Is(r io.ReaderAt) bool {
	var m [4]byte
	_, err := r.ReadAt(m[:], superOffset)
	return err == nil && le.Uint32(m[:]) == magic
}

// Read returns the entries of a filesystem with that size in bytes, each folder before its contents. It reads disks
// that Write has written; others are reported as malformed.
func Read(r io.ReaderAt, size int64) ([]Info, error) {
	s := make([]byte, 128)
	if _, err := r.ReadAt(s, superOffset); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if le.Uint32(s[0:]) != magic || s[12] != 12 {
		return nil, fmt.Errorf("%w: no superblock", errMalformed)
	}
	d := &reader{r: r, size: size, base: int64(le.Uint32(s[40:])) * blockSize}
	err := d.walk("/", uint64(le.Uint16(s[14:])), 0)
	return d.list, err
}

// inode returns an inode and its offset.
func (d *reader) inode(number uint64) (in [inodeSize]byte, at int64, err error) {
	if number > uint64(d.size) {
		return in, 0, fmt.Errorf("%w: inode %d", errMalformed, number)
	}
	at = d.base + int64(number)*inodeSize
	if _, err := d.r.ReadAt(in[:], at); err != nil {
		return in, 0, fmt.Errorf("%w: inode %d: %w", errMalformed, number, err)
	}
	return in, at, nil
}

// content reads a content that is not compressed.
func (d *reader) content(in [inodeSize]byte, at, most int64) ([]byte, error) {
	size, whole := int64(le.Uint32(in[8:])), int64(0)
	layout := le.Uint16(in[0:]) >> 1
	if size > min(most, d.size) || layout != layoutPlain && layout != layoutInline {
		return nil, fmt.Errorf("%w: content of %d bytes", errMalformed, size)
	}
	if whole = size; layout == layoutInline {
		whole = size / blockSize * blockSize
	}
	data := make([]byte, size)
	if _, err := d.r.ReadAt(data[:whole], int64(le.Uint32(in[16:]))*blockSize); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if _, err := d.r.ReadAt(data[whole:], at+inodeSize); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return data, nil
}

// walk adds the entries of a folder, recursively.
func (d *reader) walk(folder string, number uint64, depth int) error {
	in, at, err := d.inode(number)
	if err != nil {
		return err
	}
	if depth > maxDepth || le.Uint16(in[4:])&0o170000 != 0o040000 {
		return fmt.Errorf("%w: folder %.300q", errMalformed, folder)
	}
	data, err := d.content(in, at, maxFolder)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		block := data[:min(blockSize, len(data))]
		data = data[len(block):]
		if len(block) < direntSize {
			return fmt.Errorf("%w: folder %.300q", errMalformed, folder)
		}
		count := int(le.Uint16(block[8:])) / direntSize
		if count*direntSize > len(block) {
			return fmt.Errorf("%w: folder %.300q", errMalformed, folder)
		}
		for i := range count {
			e, end := block[i*direntSize:], len(block)
			if i+1 < count {
				end = int(le.Uint16(e[direntSize+8:]))
			}
			start := int(le.Uint16(e[8:]))
			if start < count*direntSize || start > end || end > len(block) {
				return fmt.Errorf("%w: folder %.300q", errMalformed, folder)
			}
			name, _, _ := strings.Cut(string(block[start:end]), "\x00")
			if name == "." || name == ".." {
				continue
			}
			if name == "" || strings.Contains(name, "/") || len(d.list) == maxRead {
				return fmt.Errorf("%w: folder %.300q", errMalformed, folder)
			}
			if err := d.entry(path.Join(folder, name), le.Uint64(e), depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry adds an entry, and its contents if it is a folder.
func (d *reader) entry(name string, number uint64, depth int) error {
	in, at, err := d.inode(number)
	if err != nil {
		return err
	}
	mode := le.Uint16(in[4:])
	info := Info{Path: name, Mode: fs.FileMode(mode & 0o777), Size: int64(le.Uint32(in[8:])), number: number}
	switch mode & 0o170000 {
	case 0o040000:
		info.Mode |= fs.ModeDir
		info.Size = 0
		d.list = append(d.list, info)
		return d.walk(name, number, depth+1)
	case 0o120000:
		info.Mode |= fs.ModeSymlink
		target, err := d.content(in, at, maxTail)
		if err != nil {
			return err
		}
		info.Target = string(target)
	}
	d.list = append(d.list, info)
	return nil
}
