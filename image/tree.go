package image

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
)

// node is one file, folder or link of a root filesystem that is being built.
type node struct {
	path   string // absolute, in the guest
	mode   fs.FileMode
	source string // a file on the host, or "" if data holds the content
	data   []byte
	target string // for a link

	part          bool // the content is only a part of source
	begin, length int64
}

// tree is a root filesystem that is being built; parents are added automatically.
type tree map[string]node

func (t tree) dir(p string, mode fs.FileMode) {
	t.put(node{path: p, mode: mode | fs.ModeDir})
}

func (t tree) file(p string, mode fs.FileMode, source string) {
	t.put(node{path: p, mode: mode, source: source})
}

func (t tree) text(p string, content string) {
	t.put(node{path: p, mode: 0o644, data: []byte(content)})
}

func (t tree) link(p, target string) {
	t.put(node{path: p, mode: 0o777 | fs.ModeSymlink, target: target})
}

func (t tree) put(n node) {
	n.path = path.Clean(n.path)
	if parent := path.Dir(n.path); parent != "/" {
		if _, ok := t[parent]; !ok {
			t.dir(parent, 0o755)
		}
	}
	t[n.path] = n
}

// add adds a user's files at their paths in the guest.
func (t tree) add(own *Custom) error {
	for name, text := range own.Files {
		t.text(name, text)
	}
	switch {
	case own.Archive != "":
		return t.addArchive(own.Archive)
	case own.Folder != "":
		return t.copyFolder(own.Folder)
	}
	return nil
}

// copyRoot adds everything below a part's root folder at the same paths.
func (t tree) copyRoot(p Part) error { return t.copyFolder(p.path("root")) }

func (t tree) copyFolder(root string) error {
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		guest := strings.TrimPrefix(name, root)
		switch {
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			t.link(guest, target)
		case d.Type().IsRegular():
			info, err := d.Info()
			if err != nil {
				return err
			}
			mode := fs.FileMode(0o644) // not the host's mode, which may exclude others (umask)
			if info.Mode()&0o100 != 0 {
				mode = 0o755
			}
			t.file(guest, mode, name)
		}
		return nil
	})
}

// sorted returns the nodes, each parent before its contents.
func (t tree) sorted() []node {
	nodes := make([]node, 0, len(t))
	for _, n := range t {
		nodes = append(nodes, n)
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].path < nodes[j].path })
	return nodes
}

// open returns a file node's content and its size.
func (n node) open() (io.ReadCloser, int64, error) {
	if n.source == "" {
		return io.NopCloser(bytes.NewReader(n.data)), int64(len(n.data)), nil
	}
	f, err := os.Open(n.source)
	if err != nil {
		return nil, 0, err
	}
	if n.part {
		return partOf{io.NewSectionReader(f, n.begin, n.length), f}, n.length, nil
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	if !st.Mode().IsRegular() {
		f.Close()
		return nil, 0, fmt.Errorf("%s is not a regular file", n.source)
	}
	return f, st.Size(), nil
}

// partOf is a part of a file.
type partOf struct {
	io.Reader
	io.Closer
}

func (n node) size() (int64, error) {
	if n.part {
		return n.length, nil
	}
	if n.source == "" {
		return int64(len(n.data)), nil
	}
	st, err := os.Stat(n.source)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
