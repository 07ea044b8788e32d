package oci

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
)

// Limits bound what an image may be. What is larger is refused, and nothing of it stays.
type Limits struct {
	Bytes   int64 // that its layers unpack to, all together
	Entries int   // of its layers' archives, all together
	Layers  int

	// Since is when a layer that CopyLayer copies was begun: what is newer gets LayerTime. Zero leaves times as they are.
	Since time.Time
}

// DefaultLimits are above any image that fits into a machine.
var DefaultLimits = Limits{Bytes: 16 << 30, Entries: 500_000, Layers: 256}

// Bounds that no filesystem's files go beyond.
const (
	maxPath  = 4096
	maxName  = 255
	maxDepth = 128 // folders; deeper ones no image has
	maxHops  = 64  // links that lead to links
)

// maxKept bounds what is read of a file here: users are in the first lines.
const maxKept = 1 << 20

// layerReader reads a layer, and counts it towards the image's bound.
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

// stepsEach bounds, for each entry that an image may have, the names that are looked at to find its
// place, and to take away what is hidden: links that lead to links, and white-outs of the same
// folder, would have the rest of the image looked at again and again.
const stepsEach = 200

func (x *flattening) step(n int) error {
	if x.steps += n; x.steps > stepsEach*x.limits.Entries {
		return errors.New("the image's links and white-outs take too long to follow")
	}
	return nil
}
