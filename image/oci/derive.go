package oci

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Layer is an archive of files that is laid over an image.
type Layer struct {
	Digest string // sha256:HEX of the unpacked archive
	Open   func() (io.ReadCloser, error)
}

// Derive returns an image with the files of a disk that Write has written, and with layers over them. Its digest covers
// all of its inputs; base is the digest of the disk's image.
func Derive(base string, disk io.ReaderAt, arch string, config Config, layers ...Layer) (*Image, error) {
	made := struct {
		Base   string   `json:"base"`
		Layers []string `json:"layers"`
		Config Config   `json:"config"`
	}{base, nil, config}
	im := &Image{Arch: arch, Config: config, layers: []layer{{walk: func(add adding) error {
		return walkDisk(disk,
			add)
	}}}}
	for _, l := range layers {
		id, err := v1.NewHash(l.Digest)
		if err != nil {
			return nil, err
		}
		made.Layers = append(made.Layers, l.Digest)
		im.layers = append(im.layers, layer{diffID: id, open: l.Open})
	}
	text, err := json.Marshal(made)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	im.Digest = "sha256:" + hex.EncodeToString(sum[:])
	return im, config.check()
}

// adding receives one entry of an archive.
type adding func(h *tar.Header, content io.Reader) error

var errNoDisk = errors.New("the disk is not as it was written: pull or import the image again")

// source reads a disk back.
type source struct {
	f     io.ReaderAt
	size  int64
	perG  uint32
	table []byte // of groups
	seen  map[uint32]string
	add   adding
}

// walkDisk reads a disk that Write has written, each folder before its contents. It can't read other disks.
func walkDisk(f io.ReaderAt, add adding) error {
	head := make([]byte, (1+tableBlocks)*blockSize)
	if _, err := f.ReadAt(head, 0); err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	super := head[1024:2048]
	s := &source{f: f, size: int64(le.Uint32(super[4:])) * blockSize, perG: le.Uint32(super[40:]), table: head[blockSize:],
		seen: map[uint32]string{}, add: add}
	if le.Uint16(super[56:]) != 0xef53 || string(super[104:120]) != uuid || s.perG == 0 || s.perG > groupInodes {
		return errNoDisk
	}
	root, err := s.inode(rootInode)
	if err != nil {
		return err
	}
	if err := s.entry("", root); err != nil {
		return err
	}
	return s.folder("", root, 0)
}

func (s *source) inode(ino uint32) (*node, error) {
	group := (ino - 1) / s.perG
	if ino == 0 || int(group+1)*32 > len(s.table) {
		return nil, errNoDisk
	}
	raw := make([]byte, inodeSize)
	if _, err := s.f.ReadAt(raw, int64(le.Uint32(s.table[group*32+8:]))*blockSize+
		int64((ino-1)%s.perG)*inodeSize); err != nil {
		return nil, fmt.Errorf("read the disk: %w", err)
	}
	n := &node{
		ino: ino, mode: le.Uint16(raw), links: int(le.Uint16(raw[26:])),
		size: int64(le.Uint32(raw[4:])) | int64(le.Uint32(raw[108:]))<<32,
		uid:  uint32(le.Uint16(raw[2:])) | uint32(le.Uint16(raw[120:]))<<16,
		gid:  uint32(le.Uint16(raw[24:])) | uint32(le.Uint16(raw[122:]))<<16,
	}
	extra := le.Uint32(raw[136:])
	n.mtime = time.Unix(int64(int32(le.Uint32(raw[16:])))+int64(extra&3)<<32, int64(extra>>2))
	tree := raw[40:100]
	if n.isLink() && n.size < 60 {
		n.target = string(tree[:n.size])
		return n, nil
	}
	if n.size < 0 || n.size > s.size {
		return nil, errNoDisk
	}
	if le.Uint16(tree[6:]) == 1 { // the extents are in a separate block
		leaf := make([]byte, 24)
		if _, err := s.f.ReadAt(leaf, int64(le.Uint32(tree[16:]))*blockSize); err != nil {
			return nil, fmt.Errorf("read the disk: %w", err)
		}
		tree = leaf
	}
	if n.size > 0 { // a content is contiguous: it begins where the first extent begins
		n.where.start = le.Uint32(tree[20:])
		if le.Uint16(tree) != 0xf30a || int64(n.where.start)*blockSize+n.size > s.size {
			return nil, errNoDisk
		}
	}
	if n.isLink() {
		target, err := io.ReadAll(s.content(n))
		if err != nil || len(target) >= maxPath {
			return nil, errors.Join(err, errNoDisk)
		}
		n.target = string(target)
	}
	return n, nil
}

func (s *source) content(n *node) io.Reader {
	return io.NewSectionReader(s.f, int64(n.where.start)*blockSize, n.size)
}

// entry passes on a node under one of its names.
func (s *source) entry(name string, n *node) error {
	h := &tar.Header{Name: name, Mode: int64(n.mode & 0o7777), Uid: int(n.uid), Gid: int(n.gid), ModTime: n.mtime}
	first, again := s.seen[n.ino]
	switch {
	case n.isDir():
		h.Typeflag = tar.TypeDir
	case again:
		h.Typeflag, h.Linkname = tar.TypeLink, first
	case n.isLink():
		h.Typeflag, h.Linkname = tar.TypeSymlink, n.target
	case n.mode&modeType == modeFile:
		h.Typeflag, h.Size = tar.TypeReg, n.size
	default:
		return errNoDisk
	}
	if n.links > 1 && !n.isDir() && !again {
		s.seen[n.ino] = name
	}
	return s.add(h, s.content(n))
}

func (s *source) folder(name string, n *node, depth int) error {
	if depth > maxDepth || n.size%blockSize != 0 {
		return errNoDisk
	}
	data, err := io.ReadAll(s.content(n))
	if err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	for at := 0; at < len(data); {
		e := data[at:]
		if len(e) < 8 {
			return errNoDisk
		}
		size, length := int(le.Uint16(e[4:])), int(e[6])
		if size < 8+length || size > len(e) {
			return errNoDisk
		}
		at += size
		word := string(e[8 : 8+length])
		if word == "." || word == ".." {
			continue
		}
		kid, err := s.inode(le.Uint32(e))
		if err != nil {
			return err
		}
		below := path.Join(name, word)
		if err := s.entry(below, kid); err != nil {
			return err
		}
		if kid.isDir() {
			if err := s.folder(below, kid, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadFiles returns the contents of regular files of a disk that Write has written, by their paths without a leading
// slash. A missing file or a link is left out. A file larger than most is an error.
func ReadFiles(disk io.ReaderAt, most int64, names ...string) (map[string][]byte, error) {
	found := map[string][]byte{}
	err := walkDisk(disk, func(h *tar.Header, content io.Reader) error {
		if h.Typeflag != tar.TypeReg || !slices.Contains(names, h.Name) {
			return nil
		}
		if h.Size > most {
			return fmt.Errorf("%s has more than %d bytes", h.Name, most)
		}
		text, err := io.ReadAll(content)
		found[h.Name] = text
		return err
	})
	return found, err
}
