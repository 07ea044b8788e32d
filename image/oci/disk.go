package oci

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"time"
)

// The disk is ext4 for a kernel that mounts it and never writes to it: no journal, no indexes, no checksums (Linux,
// Documentation/filesystems/ext4). File contents come first, in the order of reading, then folders, then inode tables
// and bitmaps, which may be anywhere (flex_bg). Only the first group has a superblock (sparse_super2), so that nothing
// interrupts long files.
const (
	blockSize   = 4096
	groupBlocks = 8 * blockSize // a bitmap is one block
	groupInodes = 8 * blockSize
	inodeSize   = 256
	firstInode  = 11
	rootInode   = 2
	tableBlocks = 16    // reserved for the table of groups: enough for 256 GiB
	maxExtent   = 32768 // blocks of an extent
	maxLinks    = 65000 // of an inode
)

// extent is the position of a file's content: consecutive blocks.
type extent struct{ start, blocks uint32 }

// disk is a filesystem that is being written.
type disk struct {
	f     io.WriterAt
	w     *bufio.Writer
	next  uint32 // next block
	buf   []byte
	dead  []extent // extents of replaced contents
	hosts []*node  // by their inode, from firstInode on; the root comes first
}

// sequence writes one block after the other.
type sequence struct {
	f  io.WriterAt
	at int64
}

func (s *sequence) Write(p []byte) (int, error) {
	n, err := s.f.WriteAt(p, s.at)
	s.at += int64(n)
	return n, err
}

func newDisk(f io.WriterAt) *disk {
	next := uint32(1 + tableBlocks)
	return &disk{f: f, w: bufio.NewWriterSize(&sequence{f, int64(next) * blockSize}, 1<<20), next: next,
		buf: make([]byte, 1<<20)}
}

var zeros [blockSize]byte

// content copies a file's content to the disk.
func (d *disk) content(r io.Reader, size int64) (extent, error) {
	e := extent{d.next, uint32((size + blockSize - 1) / blockSize)}
	n, err := io.CopyBuffer(onlyWriter{d.w}, io.LimitReader(r, size), d.buf)
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && n%blockSize != 0 {
		_, err = d.w.Write(zeros[n%blockSize:])
	}
	d.next += e.blocks
	return e, err
}

// onlyWriter hides ReadFrom, which would allocate its own buffers.
type onlyWriter struct{ io.Writer }

// blocks writes data from the start of a block.
func (d *disk) blocks(data []byte) (extent, error) {
	e := extent{d.next, uint32((len(data) + blockSize - 1) / blockSize)}
	_, err := d.w.Write(data)
	if rest := len(data) % blockSize; err == nil && rest != 0 {
		_, err = d.w.Write(zeros[rest:])
	}
	d.next += e.blocks
	return e, err
}

// finish writes everything except the contents, and returns the size of the disk.
func (d *disk) finish(root *node) (int64, error) {
	d.number(root)
	if err := d.folders(root, root); err != nil {
		return 0, err
	}
	table, err := d.tabulateInodes()
	if err != nil {
		return 0, err
	}
	l, err := d.divide(uint32(len(table) / inodeSize))
	if err != nil {
		return 0, err
	}
	table = append(table, make([]byte, int(l.groups*l.perTable*blockSize)-len(table))...)
	maps, desc, free := d.describeGroups(l)
	for _, part := range [][]byte{maps, table} {
		if _, err := d.blocks(part); err != nil {
			return 0, err
		}
	}
	if err := d.w.Flush(); err != nil {
		return 0, err
	}
	head := make([]byte, (1+tableBlocks)*blockSize)
	copy(head[1024:], superblock(l.total, l.groups*l.perGroup, l.perGroup, free.blocks, free.inodes))
	copy(head[blockSize:], desc)
	_, err = d.f.WriteAt(head, 0)
	return int64(l.total) * blockSize, err
}

// tabulateInodes returns the table of inodes, without the padding of its last block.
func (d *disk) tabulateInodes() ([]byte, error) {
	inodes := uint32(len(d.hosts)) - 1 + firstInode - 1
	table := make([]byte, inodes*inodeSize)
	for i, n := range d.hosts {
		ino := uint32(rootInode)
		if i > 0 {
			ino = firstInode + uint32(i) - 1
		}
		at := table[(ino-1)*inodeSize : ino*inodeSize]
		if err := d.inode(n, at); err != nil {
			return nil, err
		}
		seal(at, ino)
	}
	return table, nil
}

// diskLayout describes how a disk is divided into groups.
type diskLayout struct {
	inodes   uint32 // used inodes
	groups   uint32
	perGroup uint32 // inodes of a group
	perTable uint32 // blocks of a group's inodes
	at, end  uint32 // blocks of the bitmaps and tables
	total    uint32 // blocks of the disk
}

// divide chooses the groups, and puts the bitmaps and tables from the next block on. These need space themselves, which
// may require another group.
func (d *disk) divide(inodes uint32) (diskLayout, error) {
	l := diskLayout{inodes: inodes, at: d.next, groups: 1}
	for ; ; l.groups++ {
		const each = blockSize / inodeSize
		l.perGroup = ((inodes+l.groups-1)/l.groups + each - 1) / each * each
		l.perTable = l.perGroup / each
		l.end = l.at + l.groups*(2+l.perTable)
		if l.perGroup <= groupInodes && uint64(l.end) <= uint64(l.groups)*groupBlocks {
			break
		}
	}
	if l.groups*32 > tableBlocks*blockSize {
		return l, errors.New("its files take more than a disk holds")
	}
	l.total = max(l.end, (l.groups-1)*groupBlocks+1)
	return l, nil
}

// unused counts blocks and inodes.
type unused struct{ blocks, inodes uint32 }

// describeGroups returns the bitmaps and descriptors of all groups, and their free blocks and inodes.
func (d *disk) describeGroups(l diskLayout) (maps, desc []byte, free unused) {
	desc = make([]byte, l.groups*32)
	descBlocks := (l.groups*32 + blockSize - 1) / blockSize
	d.dead = append(d.dead, extent{1 + descBlocks, tableBlocks - descBlocks})
	for g := range l.groups {
		blockMap, blocks := d.mapBlocks(l, g)
		inodeMap, inodes, dirs := d.mapInodes(l, g)
		gd := desc[g*32:]
		le.PutUint32(gd[0:], l.at+2*g)
		le.PutUint32(gd[4:], l.at+2*g+1)
		le.PutUint32(gd[8:], l.at+2*l.groups+g*l.perTable)
		le.PutUint16(gd[12:], uint16(blocks))
		le.PutUint16(gd[14:], uint16(inodes))
		le.PutUint16(gd[16:], uint16(dirs))
		free.blocks, free.inodes = free.blocks+blocks, free.inodes+inodes
		maps = append(append(maps, blockMap...), inodeMap...)
	}
	return maps, desc, free
}

// mapBlocks returns the bitmap of a group's used blocks, and counts the free ones.
func (d *disk) mapBlocks(l diskLayout, g uint32) (blockMap []byte, free uint32) {
	blockMap = make([]byte, blockSize)
	for i := range uint32(groupBlocks) {
		if block := g*groupBlocks + i; block >= l.total || block < l.end {
			blockMap[i/8] |= 1 << (i % 8)
		} else {
			free++
		}
	}
	for _, e := range d.dead {
		for b := max(e.start, g*groupBlocks); b < min(e.start+e.blocks, (g+1)*groupBlocks); b++ {
			i := b - g*groupBlocks
			blockMap[i/8] &^= 1 << (i % 8)
			free++
		}
	}
	return blockMap, free
}

// mapInodes returns the bitmap of a group's used inodes, and counts the free ones and the folders.
func (d *disk) mapInodes(l diskLayout, g uint32) (inodeMap []byte, free, dirs uint32) {
	inodeMap = make([]byte, blockSize)
	for i := range uint32(groupInodes) {
		switch ino := g*l.perGroup + i + 1; {
		case i >= l.perGroup || ino < firstInode:
			inodeMap[i/8] |= 1 << (i % 8)
		case ino <= l.inodes:
			inodeMap[i/8] |= 1 << (i % 8)
			if d.hosts[ino-firstInode+1].isDir() {
				dirs++
			}
		default:
			free++
		}
	}
	if g == 0 {
		dirs++ // the root
	}
	return inodeMap, free, dirs
}

var le = binary.LittleEndian

func superblock(blocks, inodes, inodesPerGroup, freeBlocks, freeInodes uint32) []byte {
	s := make([]byte, 1024)
	for _, f := range []struct {
		at    int
		value uint32
	}{
		{0, inodes}, {4, blocks}, {12, freeBlocks}, {16, freeInodes}, {24, 2}, {28, 2}, {32, groupBlocks}, {36, groupBlocks},
		{40, inodesPerGroup},
		{76, 1},          // revision
		{84, firstInode}, //
		{92, 0x200},      // compatible: sparse_super2
		{96, 0x2 | 0x40 | 0x200},
		{100, 0x2 | 0x20 | 0x40}, // large_file, dir_nlink, extra_isize
	} {
		le.PutUint32(s[f.at:], f.value)
	}
	le.PutUint16(s[54:], 0xffff) // mounts until a check
	le.PutUint16(s[56:], 0xef53)
	le.PutUint16(s[58:], 1) // clean
	le.PutUint16(s[60:], 1) // errors are ignored
	le.PutUint16(s[88:], inodeSize)
	copy(s[104:120], uuid)
	le.PutUint32(s[624:], sum(^uint32(0), []byte(uuid)))
	copy(s[120:136], "unitask")
	le.PutUint16(s[348:], 32) // extra size of inodes
	le.PutUint16(s[350:], 32)
	s[372], s[373] = 4, 1 // groups per flex group, as a power of 2; crc32c, if there were checksums
	return s
}

// number gives each node an inode number, in the order of their paths.
func (d *disk) number(root *node) {
	root.ino = rootInode
	d.hosts = append(d.hosts, root)
	var walk func(*node)
	walk = func(n *node) {
		for _, name := range slices.Sorted(maps.Keys(n.kids)) {
			kid := n.kids[name]
			if kid.ino == 0 { // not numbered under another name
				kid.ino = firstInode + uint32(len(d.hosts)) - 1
				d.hosts = append(d.hosts, kid.node)
			}
			walk(kid.node)
		}
	}
	walk(root)
}

// folders writes the contents of a folder and of its subfolders.
func (d *disk) folders(n, parent *node) error {
	var data []byte
	at, last := 0, 0 // offsets of the next entry, and of the entry before it
	add := func(ino uint32, name string, kind byte) {
		size := (8 + len(name) + 3) &^ 3
		if len(data) == 0 || at+size > len(data) {
			if len(data) > 0 {
				le.PutUint16(data[last+4:], uint16(len(data)-last))
			}
			at = len(data)
			data = append(data, zeros[:]...)
		}
		e := data[at:]
		le.PutUint32(e, ino)
		le.PutUint16(e[4:], uint16(size))
		e[6], e[7] = byte(len(name)), kind
		copy(e[8:], name)
		last, at = at, at+size
	}
	const dirKind = 2
	add(n.ino, ".", dirKind)
	add(parent.ino, "..", dirKind)
	n.links = 2
	for _, name := range slices.Sorted(maps.Keys(n.kids)) {
		kid := n.kids[name]
		kind := byte(1)
		switch {
		case kid.isDir():
			kind = dirKind
			n.links++
		case kid.isLink():
			kind = 7
		}
		add(kid.ino, name, kind)
	}
	le.PutUint16(data[last+4:], uint16(len(data)-last))
	var err error
	n.size = int64(len(data))
	if n.where, err = d.blocks(data); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(n.kids)) {
		if kid := n.kids[name]; kid.isDir() {
			if err := d.folders(kid.node, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// inode writes a node's inode. If its extents do not fit there, it also writes a block of them.
func (d *disk) inode(n *node, to []byte) error {
	if n.links > maxLinks {
		if !n.isDir() {
			return fmt.Errorf("a file has %d names; %d is the most", n.links, maxLinks)
		}
		n.links = 1 // too many to count
	}
	le.PutUint16(to[0:], n.mode)
	le.PutUint16(to[2:], uint16(n.uid))
	le.PutUint16(to[120:], uint16(n.uid>>16))
	le.PutUint16(to[24:], uint16(n.gid))
	le.PutUint16(to[122:], uint16(n.gid>>16))
	le.PutUint32(to[4:], uint32(n.size))
	le.PutUint32(to[108:], uint32(n.size>>32))
	le.PutUint16(to[26:], uint16(n.links))
	sec, extra := stamp(n.mtime)
	for _, at := range []int{8, 12, 16, 144} {
		le.PutUint32(to[at:], sec)
	}
	for _, at := range []int{132, 136, 140, 148} {
		le.PutUint32(to[at:], extra)
	}
	le.PutUint16(to[128:], 32)
	if n.isLink() && n.size < 60 {
		copy(to[40:100], n.target)
		return nil
	}
	if n.isLink() {
		var err error
		if n.where, err = d.blocks([]byte(n.target)); err != nil {
			return err
		}
	}
	le.PutUint32(to[32:], 0x80000) // extents
	blocks := n.where.blocks
	parts := (blocks + maxExtent - 1) / maxExtent
	if parts <= 4 {
		extents(to[40:100], n.where, 4)
	} else {
		leaf := make([]byte, blockSize)
		const room = (blockSize - 12) / 12
		if parts > room {
			return errors.New("a file is larger than a disk holds")
		}
		extents(leaf, n.where, room)
		e, err := d.blocks(leaf)
		if err != nil {
			return err
		}
		blocks++
		root := to[40:100]
		le.PutUint16(root[0:], 0xf30a)
		le.PutUint16(root[2:], 1)
		le.PutUint16(root[4:], 4)
		le.PutUint16(root[6:], 1)
		le.PutUint32(root[16:], e.start)
	}
	le.PutUint32(to[28:], blocks*(blockSize/512))
	return nil
}

// uuid is the same for every disk: nothing searches for a disk by it.
const uuid = "unitask-oci-root"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns a checksum in ext4's form, without the last step of crc32.Update's.
func sum(seed uint32, data []byte) uint32 { return ^crc32.Update(^seed, castagnoli, data) }

// seal gives an inode its checksum. The kernel does not require it, but other readers do.
func seal(inode []byte, ino uint32) {
	c := sum(sum(sum(^uint32(0), []byte(uuid)), le.AppendUint32(nil, ino)), make([]byte, 4))
	c = sum(c, inode)
	le.PutUint16(inode[124:], uint16(c))
	le.PutUint16(inode[130:], uint16(c>>16))
}

// extents writes a leaf of the tree of extents.
func extents(to []byte, e extent, room uint16) {
	count := uint16(0)
	for logical := uint32(0); logical < e.blocks; count++ {
		x := to[12+12*int(count):]
		length := min(e.blocks-logical, maxExtent)
		le.PutUint32(x[0:], logical)
		le.PutUint16(x[4:], uint16(length))
		le.PutUint32(x[8:], e.start+logical)
		logical += length
	}
	le.PutUint16(to[0:], 0xf30a)
	le.PutUint16(to[2:], count)
	le.PutUint16(to[4:], room)
}

// stamp returns a time in the form of inodes: seconds, and two more bits of them beside the nanoseconds.
func stamp(t time.Time) (sec, extra uint32) {
	s := min(max(t.Unix(), -1<<31), 3<<32+1<<31-1)
	epoch := (s - int64(int32(s))) >> 32
	return uint32(s), uint32(epoch&3) | uint32(t.Nanosecond())<<2
}
