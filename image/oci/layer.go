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
	"strings"
	"time"
)

// ErrCut means that a layer ends before its last entry.
var ErrCut = errors.New("the machine has not sent all that was changed: its memory may have been full")

// LayerTime replaces a file's time if the time of building means nothing, so that a layer has the same digest whenever
// it is built.
var LayerTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// CopyLayer copies a layer from a machine, which may have run hostile code, as an archive for Derive. In the copy, no
// entry leads out of the image, there are no devices, and the paths in without, and all below them, are missing. A
// complete layer ends with an entry named end, which is not copied. The layer and the copy, in which holes are filled,
// are each bounded by limits.Bytes. CopyLayer returns the copy's digest and the number of its entries.
func CopyLayer(ctx context.Context, to io.Writer, from io.Reader, limits Limits, without []string,
	end string) (digest string, entries int, err error) {
	sum := sha256.New()
	w := tar.NewWriter(&filled{io.MultiWriter(to, sum), limits.Bytes, limits.Bytes})
	in := &counted{ctx: ctx, r: from, left: limits.Bytes, most: limits.Bytes}
	whole, room := false, limits.Bytes // room for the files: one with holes is larger than its data in the archive
	for r, n := tar.NewReader(in), 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", 0, fmt.Errorf("read the layer: %w", err)
		}
		if n >= limits.Entries {
			return "", 0, fmt.Errorf("the layer has more than %d entries", limits.Entries)
		}
		name, kept, err := layerEntry(h, without)
		if err != nil {
			return "", 0, fmt.Errorf("the layer has %.200q: %w", h.Name, err)
		}
		if whole = h.Name == end; whole || !kept {
			continue
		}
		if !limits.Since.IsZero() && h.ModTime.After(limits.Since) {
			h.ModTime = LayerTime
		}
		clean := &tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode & 0o7777, Uid: h.Uid,
			Gid: h.Gid, ModTime: h.ModTime}
		if h.Typeflag == tar.TypeReg {
			clean.Size = h.Size
			if h.Size > room {
				return "", 0, fmt.Errorf("the layer's %.200q: it has more than %d bytes", h.Name, limits.Bytes)
			}
			room -= h.Size
		}
		if err := w.WriteHeader(clean); err != nil {
			return "", 0, fmt.Errorf("write the layer's %.200q: %w", h.Name, err)
		}
		if _, err := io.Copy(w, r); err != nil {
			return "", 0, fmt.Errorf("copy the layer's %.200q: %w", h.Name, err)
		}
		entries++
	}
	if !whole {
		return "", 0, ErrCut
	}
	if err := w.Close(); err != nil {
		return "", 0, fmt.Errorf("copy the layer: %w", err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), entries, nil
}

// layerEntry returns the path of a layer's entry, and whether it belongs into the image.
func layerEntry(h *tar.Header, without []string) (name string, kept bool, err error) {
	list, err := words(h.Name)
	if err != nil {
		return "", false, err
	}
	name = path.Join(list...)
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > MaxID || int64(h.Gid) > MaxID {
		return "", false, fmt.Errorf("owner %d, group %d", h.Uid, h.Gid)
	}
	about := name // the path that a white-out deletes
	if dir, last := path.Split(name); strings.HasPrefix(last, whiteout) && last != opaque {
		about = dir + strings.TrimPrefix(last, whiteout)
	}
	for _, dir := range without {
		if dir = strings.TrimPrefix(dir, "/"); about == dir || strings.HasPrefix(about, dir+"/") {
			return name, false, nil
		}
	}
	switch h.Typeflag {
	case tar.TypeLink:
		to, err := words(h.Linkname)
		if err != nil || len(to) == 0 {
			return "", false, fmt.Errorf("a link to %.200q, which is not in the image", h.Linkname)
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= maxPath || strings.ContainsRune(h.Linkname, 0) {
			return "", false, fmt.Errorf("a link to %.100q", h.Linkname)
		}
	case tar.TypeReg, tar.TypeDir:
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return name, false, nil
	default:
		return "", false, fmt.Errorf("a kind %q that layers have not", h.Typeflag)
	}
	return name, name != "" && name != ".", nil
}

// counted reads a bounded number of bytes and fails once its context is done.
type counted struct {
	ctx        context.Context
	r          io.Reader
	left, most int64
}

func (c *counted) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.r.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return 0, fmt.Errorf("it has more than %d bytes", c.most)
	}
	return n, err
}

// filled writes a bounded number of bytes.
type filled struct {
	w          io.Writer
	left, most int64
}

func (f *filled) Write(p []byte) (int, error) {
	if f.left -= int64(len(p)); f.left < 0 {
		return 0, fmt.Errorf("it has more than %d bytes", f.most)
	}
	return f.w.Write(p)
}
