// Package erofs writes Linux's erofs filesystem, for read-only disks. Each entry chooses whether its file is
// compressed with LZ4. The package reads such a disk back, except compressed contents.
//
// Linux 5.13 and later read the format (Documentation/filesystems/erofs.rst, fs/erofs/erofs_fs.h). The same entries
// give the same bytes. All files belong to root and have one time. There are no hard links, devices or extended
// attributes.
package erofs

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/pierrec/lz4/v4"
)

// Version is the version of Write's output: raise it when the same entries give different bytes.
const Version = 1

const (
	blockSize   = 4096
	superOffset = 1024
	magic       = 0xe0f5e1e2
	inodeSize   = 32
	direntSize  = 12
	maxName     = 255 // bytes of a name in a folder
	// extentSize is the number of bytes compressed together: reading any byte unpacks the whole extent. LZ4 looks back no
	// further.
	extentSize = 64 << 10
	// maxTail is the largest last block of a file that is stored after its inode, without a separate block.
	maxTail = 2048
	// buildTime is the modification time of all files, 1980-01-02: ZIP archives can't hold older files.
	buildTime = 315619200
)

// Features and layouts, named as in erofs_fs.h.
const (
	zeroPadding, bigCluster       = 1, 2 // incompatible; bigCluster: the configuration follows the superblock
	layoutPlain, layoutCompressed = 0, 1
	layoutInline                  = 2
	adviseBigCluster              = 2
	clusterPlain, clusterHead     = 0, 1
	clusterNonHead                = 2
	blockCount                    = 1 << 11
)

// Entry is a file, a folder or a symbolic link.
type Entry struct {
	Path   string      // absolute
	Mode   fs.FileMode // type and permissions
	Target string      // of a link
	// Open returns a file's content and size.
	Open func() (io.ReadCloser, int64, error)
	// Compress requests compression. Parts of the file that would not shrink stay uncompressed.
	Compress bool
}

var le = binary.LittleEndian

// inode is an entry that is being written.
type inode struct {
	Entry
	layout  uint16
	size    int64
	start   uint32 // first block of the content
	tail    []byte // stored after the inode
	index   []byte // of a compressed file: describes where its parts are
	blocks  uint32 // of a compressed file
	kids    []*inode
	parent  *inode
	folders int   // number of folders among kids
	at      int64 // offset of the inode from the first inode
}

// writer writes one block after the other.
type writer struct {
	w      *bufio.Writer
	next   uint32 // next block
	buf    []byte
	packed []byte
	lz4    lz4.Compressor
}

// Write writes a filesystem with the entries and returns its size. A folder must precede its contents. Write ignores
// what f held before.
func Write(f io.WriterAt, entries []Entry) (int64, error) {
	root, all, err := link(entries)
	if err != nil {
		return 0, err
	}
	w := &writer{
		w: bufio.NewWriterSize(io.NewOffsetWriter(f, blockSize), 1<<20), next: 1,
		buf: make([]byte, extentSize), packed: make([]byte, lz4.CompressBlockBound(extentSize)),
	}
	for _, n := range all {
		if n.Mode.IsRegular() {
			err = w.content(n)
		} else if n.Mode.IsDir() {
			n.size, err = folderSize(n)
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", n.Path, err)
		}
	}
	// Folders name inodes, so the inodes' positions come first. Contents that do not fit behind an inode come before the
	// inodes.
	for _, n := range all {
		if n.Mode.IsDir() {
			n.start = w.next
			w.next += uint32(n.size / blockSize)
			if rest := n.size % blockSize; rest > maxTail {
				w.next++
			} else if rest > 0 {
				n.layout, n.tail = layoutInline, make([]byte, rest)
			}
		}
	}
	size := place(all)
	for _, n := range all {
		if n.Mode.IsDir() {
			if err := w.folder(n); err != nil {
				return 0, err
			}
		}
	}
	base := w.next
	table := make([]byte, (size+blockSize-1)/blockSize*blockSize)
	for i, n := range all {
		n.put(table[n.at:], uint32(i)+1)
	}
	if _, err := w.w.Write(table); err != nil {
		return 0, err
	}
	if err := w.w.Flush(); err != nil {
		return 0, err
	}
	total := int64(base)*blockSize + int64(len(table))
	if total/blockSize > math.MaxUint32 {
		return 0, errors.New("its files take more than a disk holds")
	}
	_, err = f.WriteAt(superblock(base, uint32(total/blockSize), root.number(), len(all)), 0)
	return total, err
}

// link makes a tree of the entries, and returns its root and all inodes in the order of their paths.
func link(entries []Entry) (*inode, []*inode, error) {
	root := &inode{Entry: Entry{Path: "/", Mode: fs.ModeDir | 0o755}}
	root.parent = root
	byPath, all := map[string]*inode{"/": root}, []*inode{root}
	for _, e := range entries {
		n := &inode{Entry: e, parent: byPath[path.Dir(e.Path)]}
		name := path.Base(e.Path)
		switch {
		case n.parent == nil || !n.parent.Mode.IsDir():
			return nil, nil, fmt.Errorf("%s is in no folder", e.Path)
		case byPath[e.Path] != nil:
			return nil, nil, fmt.Errorf("%s is there twice", e.Path)
		case len(name) > maxName || strings.ContainsRune(name, 0) || name == "." || name == "..":
			return nil, nil, fmt.Errorf("%.300q is no name of a file", name)
		}
		switch e.Mode.Type() {
		case fs.ModeDir:
			n.parent.folders++
		case fs.ModeSymlink:
			if len(e.Target) == 0 || len(e.Target) > maxTail {
				return nil, nil, fmt.Errorf("%s: a link's target of %d bytes", e.Path, len(e.Target))
			}
			n.layout, n.tail, n.size = layoutInline, []byte(e.Target), int64(len(e.Target))
		case 0:
		default:
			return nil, nil, fmt.Errorf("%s is neither a file, a folder nor a link", e.Path)
		}
		n.parent.kids = append(n.parent.kids, n)
		byPath[e.Path], all = n, append(all, n)
	}
	for _, n := range all {
		slices.SortFunc(n.kids, func(a, b *inode) int { return strings.Compare(path.Base(a.Path), path.Base(b.Path)) })
	}
	return root, all, nil
}

// content writes a file's content, except for a tail that will follow its inode.
func (w *writer) content(n *inode) error {
	r, size, err := n.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	if size > math.MaxUint32 {
		return fmt.Errorf("%d bytes, and a file has less than 4 GiB", size)
	}
	n.size, n.start = size, w.next
	if n.Compress && size > blockSize {
		return w.compressed(n, r)
	}
	if rest := size % blockSize; rest > 0 && rest <= maxTail {
		n.layout, n.tail = layoutInline, make([]byte, rest)
	}
	if err := w.copy(r, size-int64(len(n.tail))); err != nil {
		return err
	}
	_, err = io.ReadFull(r, n.tail)
	return err
}

// copy writes size bytes, and fills the last block.
func (w *writer) copy(r io.Reader, size int64) error {
	for size > 0 {
		part := w.buf[:min(size, int64(len(w.buf)))]
		if _, err := io.ReadFull(r, part); err != nil {
			return err
		}
		if err := w.write(part); err != nil {
			return err
		}
		size -= int64(len(part))
	}
	return nil
}

var zeros [blockSize]byte

// write writes data from the start of a block, and fills the last block.
func (w *writer) write(data []byte) error {
	_, err := w.w.Write(data)
	if rest := len(data) % blockSize; err == nil && rest != 0 {
		_, err = w.w.Write(zeros[rest:])
	}
	w.next += blocks(len(data))
	return err
}

func blocks(size int) uint32 { return uint32((size + blockSize - 1) / blockSize) }

// compressed writes a file in extents. Each begins on a block of the file, and takes as many blocks of the disk as it
// needs, right-aligned in them.
func (w *writer) compressed(n *inode, r io.Reader) error {
	n.layout = layoutCompressed
	n.index = le.AppendUint64(n.index, adviseBigCluster<<32) // LZ4, and clusters of a block
	n.index = append(n.index, make([]byte, 8)...)
	entry := func(kind uint16, u uint32) {
		n.index = le.AppendUint32(n.index, uint32(kind))
		n.index = le.AppendUint32(n.index, u)
	}
	for left := n.size; left > 0; {
		part := w.buf[:min(left, extentSize)]
		if _, err := io.ReadFull(r, part); err != nil {
			return err
		}
		left -= int64(len(part))
		size, err := w.lz4.CompressBlock(part, w.packed)
		if err != nil {
			return err
		}
		start, clusters, takes := w.next, blocks(len(part)), blocks(size)
		if size == 0 || takes > clusters*7/8 {
			for i := range clusters {
				entry(clusterPlain, start+i)
			}
			if err := w.write(part); err != nil {
				return err
			}
			continue
		}
		entry(clusterHead, start)
		for i := uint32(1); i < clusters; i++ {
			back := i
			if i == 1 {
				back = takes | blockCount
			}
			entry(clusterNonHead, back|(clusters-i)<<16)
		}
		if _, err := w.w.Write(zeros[:takes*blockSize-uint32(size)]); err != nil {
			return err
		}
		w.next += takes
		if _, err := w.w.Write(w.packed[:size]); err != nil {
			return err
		}
	}
	n.blocks = w.next - n.start
	entry(clusterPlain, 0) // the kernel reads one entry past the last
	return nil
}

// place assigns offsets to the inodes and the data after each, and returns the total size.
func place(all []*inode) int64 {
	at := int64(inodeSize) // number 0 is not used
	for _, n := range all {
		takes := int64(inodeSize + len(n.tail))
		// Neither an inode nor its tail crosses a block.
		if rest := blockSize - at%blockSize; takes > rest {
			at += rest
		}
		n.at = at
		at += (takes + int64(len(n.index)) + inodeSize - 1) / inodeSize * inodeSize
	}
	return at
}

// number returns the number of an inode.
func (n *inode) number() uint64 { return uint64(n.at / inodeSize) }

// mode returns the mode of an inode in the kernel's encoding.
func (n *inode) mode() uint16 {
	kind := uint16(0o100000)
	switch n.Mode.Type() {
	case fs.ModeDir:
		kind = 0o040000
	case fs.ModeSymlink:
		kind = 0o120000
	}
	return kind | uint16(n.Mode.Perm())
}

// put writes an inode and the data that follows it.
func (n *inode) put(to []byte, ino uint32) {
	le.PutUint16(to[0:], n.layout<<1)
	le.PutUint16(to[4:], n.mode())
	links := 1
	if n.Mode.IsDir() {
		links = min(2+n.folders, math.MaxUint16)
	}
	le.PutUint16(to[6:], uint16(links))
	le.PutUint32(to[8:], uint32(n.size))
	le.PutUint32(to[16:], n.start)
	if n.layout == layoutCompressed {
		le.PutUint32(to[16:], n.blocks)
	}
	le.PutUint32(to[20:], ino)
	copy(to[inodeSize:], n.tail)
	copy(to[inodeSize:], n.index)
}

// dirent is one name of a folder.
type dirent struct {
	name string
	of   *inode
}

// listing returns a folder's names, sorted and divided into blocks.
func listing(n *inode) (list [][]dirent, size int64, err error) {
	all := []dirent{{".", n}, {"..", n.parent}}
	for _, kid := range n.kids {
		all = append(all, dirent{path.Base(kid.Path), kid})
	}
	slices.SortFunc(all, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
	room := 0
	for _, e := range all {
		takes := direntSize + len(e.name)
		if room < takes {
			list, room = append(list, nil), blockSize
		}
		list[len(list)-1] = append(list[len(list)-1], e)
		room -= takes
	}
	size = int64(len(list))*blockSize - int64(room)
	if size > math.MaxUint32 {
		return nil, 0, errors.New("has more names than a folder holds")
	}
	return list, size, nil
}

func folderSize(n *inode) (int64, error) {
	_, size, err := listing(n)
	return size, err
}

// folder writes a folder's content: blocks, and a tail that will follow its inode.
func (w *writer) folder(n *inode) error {
	list, size, err := listing(n)
	if err != nil {
		return err
	}
	data := make([]byte, size)
	for i, entries := range list {
		block := data[i*blockSize : min(int64(i+1)*blockSize, size)]
		at := len(entries) * direntSize
		for j, e := range entries {
			d := block[j*direntSize:]
			le.PutUint64(d[0:], e.of.number())
			le.PutUint16(d[8:], uint16(at))
			d[10] = 1 // a file
			switch e.of.Mode.Type() {
			case fs.ModeDir:
				d[10] = 2
			case fs.ModeSymlink:
				d[10] = 7
			}
			at += copy(block[at:], e.name)
		}
	}
	rest := copy(n.tail, data[len(data)-len(n.tail):])
	data = data[:len(data)-rest]
	if _, err := w.w.Write(data); err != nil {
		return err
	}
	_, err = w.w.Write(zeros[:-len(data)&(blockSize-1)])
	return err
}

// superblock returns the first block. The LZ4 configuration follows the superblock in it: how far LZ4 looks back
// (the default), and the maximum number of blocks of an extent.
func superblock(metadata, total uint32, root uint64, inodes int) []byte {
	block := make([]byte, blockSize)
	s := block[superOffset:]
	le.PutUint32(s[0:], magic)
	s[12] = 12 // block size, as a power of 2
	le.PutUint16(s[14:], uint16(root))
	le.PutUint64(s[16:], uint64(inodes))
	le.PutUint64(s[24:], buildTime)
	le.PutUint32(s[36:], total)
	le.PutUint32(s[40:], metadata)
	copy(s[48:64], "unitask-compress")
	copy(s[64:80], "unitask")
	le.PutUint32(s[80:], zeroPadding|bigCluster)
	le.PutUint16(s[84:], 1) // algorithms: LZ4
	le.PutUint16(s[128:], 14)
	le.PutUint16(s[132:], extentSize/blockSize)
	return block
}
