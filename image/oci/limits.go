package oci

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
)

// Limits bound the size of an image. A larger image is refused, and nothing of it is kept.
type Limits struct {
	Bytes   int64 // unpacked bytes of all layers together
	Entries int   // entries of all layers together
	Layers  int

	// Since is when the machine began a layer that CopyLayer copies: newer files get LayerTime. Zero leaves times as they
	// are.
	Since time.Time
}

// DefaultLimits are above any image that fits into a machine.
var DefaultLimits = Limits{Bytes: 16 << 30, Entries: 500_000, Layers: 256}

// Bounds on the files of any filesystem.
const (
	maxPath  = 4096 // bytes of a path
	maxName  = 255  // bytes of a name in a folder
	maxDepth = 128  // folders; no real image has deeper ones
	maxHops  = 64   // links that lead to links
)

// maxKept bounds how much of an image's file is read here: users are in the first lines.
const maxKept = 1 << 20

// layerReader reads a layer, and counts its bytes towards the image's bound.
type layerReader struct {
	x   *flattening
	r   io.Reader
	sum hash.Hash
}

func (b *layerReader) Read(p []byte) (int, error) {
	if err := b.x.ctx.Err(); err != nil {
		return 0, context.Cause(b.x.ctx)
	}
	n, err := b.r.Read(p)
	if b.x.left -= int64(n); b.x.left < 0 {
		return 0, fmt.Errorf("the image unpacks to more than %d bytes", b.x.limits.Bytes)
	}
	b.sum.Write(p[:n])
	return n, err
}

// stepsEach bounds the names that are looked at per allowed entry, to find its place and to delete what is hidden.
// Without the bound, chains of links, and white-outs of the same folder, could have the whole image searched again and
// again.
const stepsEach = 200

func (x *flattening) step(n int) error {
	if x.steps += n; x.steps > stepsEach*x.limits.Entries {
		return errors.New("the image's links and white-outs take too long to follow")
	}
	return nil
}
