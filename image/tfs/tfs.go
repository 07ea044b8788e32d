// Package tfs writes and reads TFS, the filesystem of the Nanos unikernel, as a go-diskfs filesystem. It knows only the
// format, not kernels or machines.
//
// # The format
//
// This is TFS version 5, from the Nanos sources at commit b9c3671 of 2026-07-18: src/tfs/tfs.c and tlog.c for the log,
// src/runtime/tuple.c for values. Its kernel has booted images in this format. Sectors have 512 bytes; sector numbers
// are relative to the filesystem's start. There are no checksums.
//
// A filesystem is a log of tuples and, elsewhere, the bytes of files.
//
// The log begins in sector 0 with an extension of one sector:
//
//	"NVMTFS"  varint version (5)  varint length in sectors (1)
//	UUID (16 bytes)  label (NUL-terminated, at most 31 bytes)
//	records
//
// Further extensions have magic, version and length only, then records:
//
//	1  end of log; the rest of the extension means nothing
//	2  tuple: varint total length, varint length of this segment, bytes
//	3  tuple continued: varint length of this segment, bytes
//	4  end of segment, skipped
//	5  link: varint sector, varint length in sectors; reading continues there
//
// A varint is big-endian in groups of seven bits; bit 7 says that more follow.
//
// A value begins with a byte. Bit 7 means immediate, bits 6 to 4 are the type, and bit 3 means that more bits follow.
// Bits 2 to 0 are the highest bits of a number N, whose further bits follow in varint form.
//
//	type 0  symbol    immediate: N bytes of name, which gets the next id
//	                  else: the symbol with id N
//	type 1  tuple     immediate: N pairs of symbol and value; the tuple gets the
//	                  next id, before its pairs do
//	                  else: varint id, then N pairs to be merged into that tuple
//	type 2  vector    immediate: N values; gets an id as a tuple does
//	type 3  integer   N is the sign, then a varint
//	type 4  string    N bytes
//
// Ids count from 1 over symbols, tuples and vectors as they appear. Id 1 is the root tuple. A type 0 value with N = 0
// deletes its key.
//
// The root tuple is the root folder, and holds the kernel's configuration beside it. A folder has children:(name:tuple
// …), a link has linktarget:string, and a file has filelength:integer and extents:(…). The key of an extent is the
// decimal offset in the file in sectors. Its value is (offset:sector length:sectors allocated:sectors), each an integer
// or a decimal string. Parts without an extent are zeros. There are no modes and no owners.
package tfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/filesystem"
)

const (
	sectorSize = 512
	magic      = "NVMTFS"
	version    = 5

	maxLabel = 31  // bytes
	maxName  = 255 // bytes of a name in a folder
)

// Type is the result of FileSystem.Type; go-diskfs numbers its own types from 0 up.
const Type filesystem.Type = 0x7f5

// Value is one of string, int64, Tuple and []Value.
type Value any

// Tuple is an ordered list of names and values.
type Tuple []Pair

// Pair is one name and value of a Tuple.
type Pair struct {
	Name  string
	Value Value
}

// Get returns the value of a name, or nil.
func (t Tuple) Get(name string) Value {
	for _, p := range t {
		if p.Name == name {
			return p.Value
		}
	}
	return nil
}

// Params describes a new filesystem apart from its files.
type Params struct {
	Label string // at most 31 bytes; identifies a data volume
	UUID  [16]byte
	// Attributes are the pairs of the root tuple other than "children".
	Attributes Tuple
}

// FileSystem is a TFS on a part of a disk. It satisfies go-diskfs's filesystem.FileSystem. Paths are separated by
// slashes. fs.FS methods accept no leading slash; for other methods it is optional. Close writes a new filesystem; one
// that was read can't be changed.
//
// It is not safe for concurrent use.
type FileSystem struct {
	storage backend.Storage
	w       backend.WritableFile // nil for a filesystem that was read
	start   int64                // offset of the filesystem on the disk, in bytes
	sectors int64                // its size
	params  Params
	root    *node
	next    int64 // the first free sector
	closed  bool
}

var _ filesystem.FileSystem = (*FileSystem)(nil)

// node is a file, folder or link.
type node struct {
	name     string
	mode     fs.FileMode // type bits only
	children map[string]*node
	target   string
	size     int64
	extents  []extent // ordered by file, without overlaps
}

// extent is a run of sectors of a file.
type extent struct {
	file   int64 // first sector within the file
	sector int64 // first sector on the disk
	length int64 // sectors
}

// logSectors is the length of the log extension that is reserved before the data, as in Nanos's own mkfs. Nanos's
// second boot stage can hold no longer one.
const logSectors = 1024

// Create returns a new, empty filesystem on size bytes of b from start on. It overwrites existing data as needed.
func Create(b backend.Storage, size, start int64, p Params) (*FileSystem, error) {
	w, err := b.Writable()
	if err != nil {
		return nil, fmt.Errorf("create TFS: %w", err)
	}
	switch {
	case size%sectorSize != 0 || start%sectorSize != 0 || start < 0:
		return nil, fmt.Errorf("create TFS: size %d and start %d must be multiples of %d", size, start, sectorSize)
	case size/sectorSize <= 1+logSectors:
		return nil, fmt.Errorf("create TFS: %d bytes are too few", size)
	case len(p.Label) > maxLabel || strings.ContainsRune(p.Label, 0):
		return nil, fmt.Errorf("create TFS: label %q is longer than %d bytes", p.Label, maxLabel)
	}
	return &FileSystem{storage: b, w: w, start: start, sectors: size / sectorSize, params: p, root: newFolder(""),
		next: 1 + logSectors}, nil
}

func newFolder(name string) *node {
	return &node{name: name, mode: fs.ModeDir, children: map[string]*node{}}
}

// Attributes returns the root tuple's pairs other than its children.
func (f *FileSystem) Attributes() Tuple { return f.params.Attributes }

// UUID returns the filesystem's identifier.
func (f *FileSystem) UUID() [16]byte { return f.params.UUID }

// Type returns TFS's type number.
func (f *FileSystem) Type() filesystem.Type { return Type }

// Label returns the volume's label.
func (f *FileSystem) Label() string { return f.params.Label }

// SetLabel changes the label of a filesystem that is being written.
func (f *FileSystem) SetLabel(label string) error {
	if err := f.writable("set label", label); err != nil {
		return err
	}
	if len(label) > maxLabel {
		return fmt.Errorf("set label %q: longer than %d bytes", label, maxLabel)
	}
	f.params.Label = label
	return nil
}

func (f *FileSystem) writable(op, name string) error {
	if f.w == nil || f.closed {
		return &fs.PathError{Op: op, Path: name, Err: filesystem.ErrReadonlyFilesystem}
	}
	return nil
}

func clean(name string) string {
	name = path.Clean("/" + name)
	return strings.TrimPrefix(name, "/")
}

// find is like lookup, for the methods of fs.FS, whose names must satisfy fs.ValidPath.
func (f *FileSystem) find(op, name string) (*node, error) {
	n, err := f.lookup(name)
	if !fs.ValidPath(name) {
		err = fs.ErrInvalid
	}
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return n, nil
}

// lookup finds a node without following links.
func (f *FileSystem) lookup(name string) (*node, error) {
	n := f.root
	if name = clean(name); name == "" {
		return n, nil
	}
	for _, part := range strings.Split(name, "/") {
		if n = n.children[part]; n == nil {
			return nil, fs.ErrNotExist
		}
	}
	return n, nil
}

// add puts a new node at name, whose folder must exist.
func (f *FileSystem) add(op, name string, n *node) error {
	fail := func(err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }
	if err := f.writable(op, name); err != nil {
		return err
	}
	dir, base := path.Split(clean(name))
	parent, err := f.lookup(dir)
	switch {
	case err != nil:
		return fail(err)
	case parent.mode != fs.ModeDir:
		return fail(errors.New("not a directory"))
	case base == "" || parent.children[base] != nil:
		return fail(fs.ErrExist)
	case base == "." || base == ".." || len(base) > maxName || strings.ContainsRune(base, 0):
		return fail(fs.ErrInvalid)
	}
	n.name = base
	parent.children[base] = n
	return nil
}

// Mkdir makes a folder and, like go-diskfs's other filesystems, its parents. An existing folder is not an error.
func (f *FileSystem) Mkdir(name string) error {
	done := ""
	for _, part := range strings.Split(clean(name), "/") {
		done = path.Join(done, part)
		if n, err := f.lookup(done); err == nil {
			if n.mode != fs.ModeDir {
				return &fs.PathError{Op: "mkdir", Path: name, Err: errors.New("not a directory")}
			}
			continue
		}
		if err := f.add("mkdir", done, newFolder("")); err != nil {
			return err
		}
	}
	return nil
}

// Symlink creates the link newpath with the target oldpath.
func (f *FileSystem) Symlink(oldpath, newpath string) error {
	if oldpath == "" || strings.ContainsRune(oldpath, 0) {
		return &fs.PathError{Op: "symlink", Path: newpath, Err: fs.ErrInvalid}
	}
	return f.add("symlink", newpath, &node{mode: fs.ModeSymlink, target: oldpath})
}

// Readlink returns a link's target.
func (f *FileSystem) Readlink(name string) (string, error) {
	n, err := f.lookup(name)
	if err == nil && n.mode != fs.ModeSymlink {
		err = fs.ErrInvalid
	}
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return n.target, nil
}

// Chmod and Chown change nothing: TFS has neither modes nor owners.
func (f *FileSystem) Chmod(string, os.FileMode) error { return nil }
func (f *FileSystem) Chown(string, int, int) error    { return nil }
func (f *FileSystem) Mknod(string, uint32, int) error { return filesystem.ErrNotSupported }
func (f *FileSystem) Link(string, string) error       { return filesystem.ErrNotSupported }
func (f *FileSystem) Rename(string, string) error     { return filesystem.ErrNotSupported }
func (f *FileSystem) Remove(string) error             { return filesystem.ErrNotSupported }
func (f *FileSystem) Chtimes(string, time.Time, time.Time, time.Time) error {
	return filesystem.ErrNotSupported
}

// ReadDir returns a folder's entries, sorted by name.
func (f *FileSystem) ReadDir(name string) ([]fs.DirEntry, error) {
	n, err := f.find("readdir", name)
	if err != nil {
		return nil, err
	}
	if n.mode != fs.ModeDir {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a directory")}
	}
	return n.entries(), nil
}

// entries returns a folder's nodes, sorted by name.
func (n *node) entries() []fs.DirEntry {
	var list []fs.DirEntry
	for _, c := range n.sorted() {
		list = append(list, fs.FileInfoToDirEntry(info{c}))
	}
	return list
}

func (n *node) sorted() []*node {
	list := make([]*node, 0, len(n.children))
	for _, c := range n.children {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return list
}

// Stat describes a file, folder or link; a link is not followed.
func (f *FileSystem) Stat(name string) (fs.FileInfo, error) {
	n, err := f.find("stat", name)
	if err != nil {
		return nil, err
	}
	return info{n}, nil
}

type info struct{ n *node }

func (i info) Name() string {
	if i.n.name == "" {
		return "."
	}
	return i.n.name
}
func (i info) Size() int64        { return i.n.size }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return i.n.mode == fs.ModeDir }
func (i info) Sys() any           { return nil }

// Mode includes the permissions that Nanos shows for every file.
func (i info) Mode() fs.FileMode { return i.n.mode | 0o777 }
