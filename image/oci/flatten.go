package oci

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"
)

// White-outs: names in a layer that delete files of the layers below (OCI image specification, layer.md).
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
	modeType = 0o170000
)

// node is a file, folder or link.
type node struct {
	mode     uint16 // as in an inode
	uid, gid uint32
	mtime    time.Time
	size     int64
	where    extent
	target   string // of a link
	kids     map[string]entry
	links    int
	ino      uint32
}

// entry is a name in a folder.
type entry struct {
	*node
	layer int // the last layer that had the entry
}

func (n *node) isDir() bool  { return n.mode&modeType == modeDir }
func (n *node) isLink() bool { return n.mode&modeType == modeLink }

func newDir() *node {
	return &node{mode: modeDir | 0o755, mtime: time.Unix(0, 0), kids: map[string]entry{}, links: 2}
}

// Stats describes what was written.
type Stats struct {
	Size    int64 // of the disk
	Entries int   // of the layers
	Devices int   // device nodes and pipes, which are skipped
	Dead    []Hole
}

// Hole is a part of the disk that nothing refers to.
type Hole struct{ Offset, Size int64 }

// Disk is the destination of Write.
type Disk interface {
	io.WriterAt
	io.ReaderAt
}

// Write writes the image's files as a disk, without the files that upper layers replace or delete. Every layer must
// have the digest that the image's configuration names.
func (im *Image) Write(ctx context.Context, f Disk, limits Limits) (Stats, error) {
	if len(im.layers) > limits.Layers {
		return Stats{}, fmt.Errorf("the image has %d layers; %d is the most", len(im.layers), limits.Layers)
	}
	x := &flattening{ctx: ctx, limits: limits, disk: newDisk(f), root: newDir(), left: limits.Bytes}
	for i, l := range im.layers {
		if err := x.apply(i+1, l); err != nil {
			return Stats{}, fmt.Errorf("layer %d of %d (%.19s): %w", i+1, len(im.layers), l.name(), err)
		}
	}
	if dir, err := words(im.Config.Dir); err != nil {
		return Stats{}, fmt.Errorf("the image's working directory %.200q: %w", im.Config.Dir, err)
	} else if _, err := x.folder(dir, makeMissing); err != nil { // containers also create a missing one
		return Stats{}, fmt.Errorf("the image's working directory %.200q: %w", im.Config.Dir, err)
	}
	for _, volume := range im.Config.Volumes {
		dir, err := words(volume)
		if err == nil {
			_, err = x.folder(dir, makeMissing)
		}
		if err != nil {
			return Stats{}, fmt.Errorf("the image's volume %.200q: %w", volume, err)
		}
	}
	size, err := x.disk.finish(x.root)
	if err == nil {
		im.passwd, err = x.file(f, "etc", "passwd")
	}
	if err == nil {
		im.group, err = x.file(f, "etc", "group")
	}
	if err != nil {
		return Stats{}, err
	}
	stats := Stats{Size: size, Entries: x.entries, Devices: x.devices}
	for _, e := range x.disk.dead {
		stats.Dead = append(stats.Dead, Hole{int64(e.start) * blockSize, int64(e.blocks) * blockSize})
	}
	return stats, nil
}

type flattening struct {
	ctx     context.Context
	limits  Limits
	disk    *disk
	root    *node
	left    int64 // bytes
	entries int
	devices int
	layer   int
	steps   int // number of names that were looked at
}

func (x *flattening) apply(number int, l layer) error {
	x.layer = number
	if l.walk != nil {
		return l.walk(x.entry)
	}
	r, err := l.read(x.limits.Bytes)
	if err != nil {
		return err
	}
	defer r.Close()
	in := &layerReader{x, r, sha256.New()}
	archive := tar.NewReader(in)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := x.entry(h, archive); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	if err := r.finish(); err != nil {
		return err
	}
	if sum := hex.EncodeToString(in.sum.Sum(nil)); l.diffID.Hex != sum {
		return fmt.Errorf("it unpacks to something of digest sha256:%s, and the image says %s", sum, l.diffID)
	}
	return nil
}

// entry adds an entry of a layer, unless the image then has too many.
func (x *flattening) entry(h *tar.Header, content io.Reader) error {
	if x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	if x.entries++; x.entries > x.limits.Entries {
		return fmt.Errorf("the image has more than %d entries", x.limits.Entries)
	}
	if err := x.add(h, content); err != nil {
		return fmt.Errorf("%.200q: %w", h.Name, err)
	}
	return nil
}

// words splits a path of an archive into names; an absolute path starts at the root of the image.
func words(name string) ([]string, error) {
	if len(name) > maxPath {
		return nil, fmt.Errorf("a path of %d bytes; %d is the most", len(name), maxPath)
	}
	var list []string
	for _, w := range strings.Split(name, "/") {
		switch {
		case w == "" || w == ".":
			continue
		case w == "..":
			return nil, errors.New("a path that goes upwards (..)")
		case len(w) > maxName:
			return nil, fmt.Errorf("a name of %d bytes; %d is the most", len(w), maxName)
		case strings.ContainsRune(w, 0):
			return nil, errors.New("a name with a NUL byte")
		}
		list = append(list, w)
	}
	if len(list) > maxDepth {
		return nil, fmt.Errorf("%d folders deep; %d is the most", len(list), maxDepth)
	}
	return list, nil
}

// making tells folder what to create.
type making int

const (
	makeNone    making = iota
	makeMissing        // missing folders; a file in the way is an error
	makeAll            // missing folders, also in place of files
)

// folder finds a folder. It follows links, which can't lead out of the image.
func (x *flattening) folder(names []string, make making) (*node, error) {
	todo := slices.Clone(names)
	trail, at := []*node{x.root}, []string{""} // trail are the folders on the path, at their names
	for hops := 0; len(todo) > 0; {
		if err := x.step(1); err != nil {
			return nil, err
		}
		name, here := todo[0], trail[len(trail)-1]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			trail, at = trail[:max(1, len(trail)-1)], at[:max(1, len(at)-1)]
			continue
		}
		kid := here.kids[name].node
		switch {
		case kid == nil && make == makeNone:
			return nil, nil
		case kid == nil || !kid.isDir() && !kid.isLink():
			switch {
			case make == makeNone:
				return nil, nil
			case make == makeMissing && kid != nil:
				return nil, fmt.Errorf("%s/%s is no folder", strings.Join(at, "/"), name)
			case len(name) > maxName || len(trail) > maxDepth:
				return nil, errors.New("a link leads to a name that is too long, or too deep")
			}
			if x.entries++; x.entries > x.limits.Entries {
				return nil, fmt.Errorf("the image has more than %d entries", x.limits.Entries)
			}
			kid = newDir()
			x.put(here, name, kid)
		case kid.isLink():
			if hops++; hops > maxHops {
				return nil, errors.New("links that lead to each other")
			}
			if path.IsAbs(kid.target) {
				trail, at = trail[:1], at[:1]
			}
			todo = append(strings.Split(kid.target, "/"), todo...)
			if err := x.step(len(todo)); err != nil {
				return nil, err
			}
			if len(todo) > maxPath {
				return nil, errors.New("links that lead to each other")
			}
			continue
		}
		trail, at = append(trail, kid), append(at, name)
	}
	return trail[len(trail)-1], nil
}

// put adds an entry to a folder, or replaces it.
func (x *flattening) put(dir *node, name string, n *node) {
	x.drop(dir.kids[name].node)
	dir.kids[name] = entry{n, x.layer}
}

// drop removes a name of a node, and everything below it.
func (x *flattening) drop(n *node) {
	if n == nil {
		return
	}
	for _, kid := range n.kids {
		x.drop(kid.node)
	}
	if n.links--; !n.isDir() && n.links == 0 && n.where.blocks > 0 {
		x.disk.dead = append(x.disk.dead, n.where)
	}
}

// hide deletes what lower layers have at a node, and reports whether nothing is left of it.
func (x *flattening) hide(n entry) bool {
	x.steps += len(n.kids)
	for name, kid := range n.kids {
		if x.hide(kid) {
			x.drop(kid.node)
			delete(n.kids, name)
		}
	}
	return n.layer < x.layer && len(n.kids) == 0
}

// add adds an entry of a layer.
func (x *flattening) add(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	names, err := words(h.Name)
	if err != nil {
		return err
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > 1<<32-2 || int64(h.Gid) > 1<<32-2 {
		return fmt.Errorf("owner %d, group %d", h.Uid, h.Gid)
	}
	n := &node{uid: uint32(h.Uid), gid: uint32(h.Gid), mode: uint16(h.Mode & 0o7777), mtime: h.ModTime, links: 1}
	if len(names) == 0 {
		if h.Typeflag == tar.TypeDir {
			x.root.uid, x.root.gid, x.root.mode, x.root.mtime = n.uid, n.gid, modeDir|n.mode, n.mtime
		}
		return nil
	}
	name := names[len(names)-1]
	if rest, ok := strings.CutPrefix(name, whiteout); ok {
		return x.takeAway(names[:len(names)-1], name, rest)
	}
	dir, err := x.folder(names[:len(names)-1], makeAll)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if have := dir.kids[name].node; have != nil && have.isDir() {
			have.uid, have.gid, have.mode, have.mtime = n.uid, n.gid, modeDir|n.mode, n.mtime
			dir.kids[name] = entry{have, x.layer}
			return nil
		}
		n.mode, n.kids, n.links = n.mode|modeDir, map[string]entry{}, 2
	case tar.TypeReg, tar.TypeGNUSparse:
		n.mode, n.size = n.mode|modeFile, h.Size
		if h.Size > x.left {
			return fmt.Errorf("%d bytes; the image may have %d", h.Size, x.limits.Bytes)
		}
		before := x.left
		if n.where, err = x.disk.content(content, h.Size); err != nil {
			return err
		}
		// A file with holes is larger on the disk than in the archive.
		x.left = min(x.left, before-h.Size)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= maxPath || strings.ContainsRune(h.Linkname, 0) {
			return fmt.Errorf("a link to %.100q", h.Linkname)
		}
		n.mode, n.target, n.size = modeLink|0o777, h.Linkname, int64(len(h.Linkname))
	case tar.TypeLink:
		if n, err = x.linked(h.Linkname); err != nil {
			return err
		}
		if dir.kids[name].node == n {
			return nil
		}
		if n.links++; n.links > maxLinks {
			return fmt.Errorf("a file with more than %d names", maxLinks)
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		x.devices++
		return nil
	default:
		return fmt.Errorf("an entry of unknown type %q", h.Typeflag)
	}
	x.put(dir, name, n)
	return nil
}

// takeAway applies a white-out.
func (x *flattening) takeAway(parent []string, name, rest string) error {
	if name != opaque && strings.HasPrefix(rest, whiteout) {
		return nil // AUFS's own metadata
	}
	if rest == "" || rest == "." || rest == ".." {
		return errors.New("a white-out of no name")
	}
	dir, err := x.folder(parent, makeNone)
	if err == nil {
		err = x.step(1)
	}
	if err != nil || dir == nil {
		return err
	}
	if name == opaque {
		x.hide(entry{dir, x.layer})
		return nil
	}
	if kid := dir.kids[rest]; kid.node != nil && x.hide(kid) {
		x.drop(kid.node)
		delete(dir.kids, rest)
	}
	return nil
}

// linked returns the file that a hard link names.
func (x *flattening) linked(name string) (*node, error) {
	names, err := words(name)
	if err != nil {
		return nil, fmt.Errorf("a link to %.200q: %w", name, err)
	}
	if len(names) == 0 {
		return nil, errors.New("a link to the root")
	}
	dir, err := x.folder(names[:len(names)-1], makeNone)
	if err != nil {
		return nil, err
	}
	if dir != nil {
		if n := dir.kids[names[len(names)-1]].node; n != nil && !n.isDir() {
			return n, nil
		}
	}
	return nil, fmt.Errorf("a link to %.200q, which is no file of the image", name)
}

// file returns the beginning of a file of the finished image, following links, or nil if there is no such file. The
// layers' contents are on the disk by then.
func (x *flattening) file(from io.ReaderAt, names ...string) ([]byte, error) {
	for range maxHops {
		last := len(names) - 1
		in, err := x.folder(names[:last], makeNone)
		if err != nil || in == nil {
			return nil, nil // links that lead to each other, or to nothing
		}
		n := in.kids[names[last]].node
		switch {
		case n == nil || n.isDir():
			return nil, nil
		case n.isLink() && path.IsAbs(n.target):
			names = strings.Split(n.target, "/")
			continue
		case n.isLink():
			names = append(slices.Clone(names[:last]), strings.Split(n.target, "/")...)
			continue
		}
		text := make([]byte, min(n.size, maxKept))
		if _, err := from.ReadAt(text, int64(n.where.start)*blockSize); err != nil && len(text) > 0 {
			return nil, fmt.Errorf("read /%s again: %w", path.Join(names...), err)
		}
		return text, nil
	}
	return nil, nil
}
