package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
)

// sparse is a disk in memory with a size limit.
type sparse struct{ data []byte }

const mostSparse = 64 << 20

func (s *sparse) WriteAt(p []byte, at int64) (int, error) {
	if end := at + int64(len(p)); end > int64(len(s.data)) {
		if end > mostSparse {
			return 0, io.ErrShortWrite
		}
		s.data = append(s.data, make([]byte, end-int64(len(s.data)))...)
	}
	return copy(s.data[at:], p), nil
}

func (s *sparse) ReadAt(p []byte, at int64) (int, error) {
	return bytes.NewReader(s.data).ReadAt(p, at)
}

// FuzzFlatten gives layers whose entries a fuzzer chooses. Whatever they are, the written tree is valid, no name leads
// out of it, and it is within its limits.
func FuzzFlatten(f *testing.F) {
	f.Add("f a\nd b\nh c a\ns l ../../etc\nf l/x", "f .wh.a\nf b/.wh..wh..opq\nf l/.wh.x", []byte{})
	f.Add("s etc/passwd ../x/y\ns x/y z\nf x/z", "s etc/group group\nf etc/group/x", []byte{})
	f.Add("s a b\ns b a\nf a/x", "h / a\nc dev\nd .", []byte{})
	f.Add("f ../../x\nf /y\nf a/../b", "s . .\nf ./x/", []byte{})
	f.Add("d a\nd a/b\nf a/b/c", "f a\nd a\nh a/b a/b", []byte("ustar"))
	f.Fuzz(func(t *testing.T, lower, upper string, raw []byte) {
		limits := Limits{Bytes: 1 << 20, Entries: 500, Layers: 3}
		im := &Image{layers: []layer{layerFrom(script(t, lower)), layerFrom(script(t, upper))}}
		if len(raw) > 0 {
			im.layers = append(im.layers, layerFrom(raw))
		}
		x := &flattening{ctx: context.Background(), limits: limits, disk: newDisk(&sparse{}), root: newDir(),
			left: limits.Bytes}
		var err error
		for i, l := range im.layers {
			if err = x.apply(i+1, l); err != nil {
				break
			}
		}
		seen := map[*node]int{}
		var walk func(*node, int)
		walk = func(n *node, depth int) {
			if depth > maxDepth+1 {
				t.Fatalf("%d folders deep", depth)
			}
			for name, kid := range n.kids {
				if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > maxName {
					t.Fatalf("the name %q", name)
				}
				if strings.HasPrefix(name, whiteout) && err == nil {
					t.Fatalf("a white-out stayed: %q", name)
				}
				if seen[kid.node]++; kid.isDir() && seen[kid.node] > 1 {
					t.Fatalf("folder %q has two names", name)
				}
				walk(kid.node, depth+1)
			}
		}
		walk(x.root, 0)
		for n, names := range seen {
			if !n.isDir() && n.links != names {
				t.Fatalf("a file has %d names, and counts %d", names, n.links)
			}
		}
		if len(seen) > limits.Entries {
			t.Fatalf("%d entries", len(seen))
		}
		if err != nil {
			return
		}
		for range 2 { // a tree is written the same each time
			disk := &sparse{}
			if _, err := im.Write(context.Background(), disk, limits); err != nil {
				t.Fatalf("the tree was made, but not written: %v", err)
			}
		}
	})
}

// script makes a layer from lines: a kind, a name, and its target.
func script(t *testing.T, text string) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		h := &tar.Header{Name: words[1], Mode: 0o644, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch words[0] {
		case "d":
			h.Typeflag = tar.TypeDir
		case "c":
			h.Typeflag = tar.TypeChar
		case "s", "h":
			h.Typeflag = map[string]byte{"s": tar.TypeSymlink, "h": tar.TypeLink}[words[0]]
			h.Linkname = words[len(words)-1]
		}
		if err := w.WriteHeader(h); err != nil {
			continue // from an entry that no archive can have
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
