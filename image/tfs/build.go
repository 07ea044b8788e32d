package tfs

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// builder builds nodes and values from tuples, and counts them. A tuple may be in many places, so a small log can
// describe an endless tree.
type builder struct {
	sectors int64 // of the filesystem
	made    int
}

func (b *builder) count(depth int) error {
	if b.made++; b.made > maxNodes {
		return formatError("more than %d files and attributes", maxNodes)
	}
	if depth > maxDepth {
		return formatError("folders more than %d deep", maxDepth)
	}
	return nil
}

// public converts an item to a Value.
func (b *builder) public(v item, depth int) (Value, error) {
	if err := b.count(depth); err != nil {
		return nil, err
	}
	switch v.kind {
	case typeInteger:
		return v.num, nil
	case typeTuple:
		out := Tuple{}
		for _, name := range v.tuple.order {
			x, ok := v.tuple.pairs[name]
			if !ok {
				continue
			}
			value, err := b.public(x, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, Pair{name, value})
		}
		return out, nil
	case typeVector:
		out := []Value{}
		for _, x := range v.tuple.list {
			value, err := b.public(x, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, value)
		}
		return out, nil
	}
	return v.text, nil
}

// number returns an integer, or parses the decimal string that some writers use.
func (v item) number() (int64, error) {
	if v.kind == typeInteger {
		return v.num, nil
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	if err != nil || v.kind != typeString {
		return 0, formatError("%q is no number", v.text)
	}
	return n, nil
}

// node builds a node from its tuple.
func (b *builder) node(name string, t *tuple, depth int) (*node, error) {
	if err := b.count(depth); err != nil {
		return nil, err
	}
	if children, ok := t.pairs["children"]; ok {
		return b.folder(name, children, depth)
	}
	if target, ok := t.pairs["linktarget"]; ok {
		return &node{name: name, mode: fs.ModeSymlink, target: target.text}, nil
	}
	n := &node{name: name}
	size, ok := t.pairs["filelength"]
	if !ok {
		return n, nil // a socket, or a file that was never written
	}
	var err error
	if n.size, err = size.number(); err != nil || n.size < 0 {
		return nil, formatError("%q has a length of %d", name, n.size)
	}
	if extents, ok := t.pairs["extents"]; ok && extents.kind == typeTuple {
		if n.extents, err = b.extents(name, extents.tuple); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (b *builder) folder(name string, children item, depth int) (*node, error) {
	if children.kind != typeTuple {
		return nil, formatError("%q has children of type %d", name, children.kind)
	}
	n := newFolder(name)
	for _, child := range children.tuple.order {
		v, ok := children.tuple.pairs[child]
		if !ok {
			continue
		}
		if v.kind != typeTuple || child == "" || child == "." || child == ".." || strings.ContainsAny(child, "/\x00") {
			return nil, formatError("entry %q of %q", child, name)
		}
		c, err := b.node(child, v.tuple, depth+1)
		if err != nil {
			return nil, err
		}
		n.children[child] = c
	}
	return n, nil
}

// extents returns a file's extents, sorted.
func (b *builder) extents(name string, t *tuple) ([]extent, error) {
	var list []extent
	for _, key := range t.order {
		v, ok := t.pairs[key]
		if !ok {
			continue
		}
		if err := b.count(0); err != nil {
			return nil, err
		}
		if v.kind != typeTuple {
			return nil, formatError("extent %q of %q", key, name)
		}
		e, err := b.extent(key, v.tuple)
		if err != nil {
			return nil, formatError("extent %q of %q: %v", key, name, err)
		}
		if _, ok := v.tuple.pairs["uninited"]; !ok { // otherwise allocated and never written: zeros
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b extent) int { return cmp.Compare(a.file, b.file) })
	for i := 1; i < len(list); i++ {
		if list[i-1].file+list[i-1].length > list[i].file {
			return nil, formatError("extents of %q overlap", name)
		}
	}
	return list, nil
}

func (b *builder) extent(key string, t *tuple) (extent, error) {
	file, err := strconv.ParseInt(key, 10, 64)
	if err != nil {
		return extent{}, err
	}
	sector, err := t.pairs["offset"].number()
	if err != nil {
		return extent{}, err
	}
	length, err := t.pairs["length"].number()
	if err != nil {
		return extent{}, err
	}
	if file < 0 || file > maxFileSectors || sector < 0 || length < 1 || sector > b.sectors || length > b.sectors-sector {
		return extent{}, fmt.Errorf("%d sectors at %d", length, sector)
	}
	return extent{file, sector, length}, nil
}

// maxFileSectors keeps a file's offsets in bytes within 63 bits.
const maxFileSectors = 1 << 50
