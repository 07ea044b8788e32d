package broker

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// What the requests of one run keep in memory while they wait: about 100 MiB at most.
const (
	// maxRequests bounds those at once, which could be maxStreams for each connection: net/http
	// keeps some 20 KiB for one, on both sides together.
	maxRequests = 2048
	// bigBuffer is what an answer is copied with: eight records of TLS.
	bigBuffer = 128 << 10
	// smallBuffer is what it is copied with when there are maxBig answers at once.
	smallBuffer = 4 << 10
	maxBig      = 128
	// maxBodies bounds the requests with bodies at once: net/http copies each with up to 32 KiB
	// of its own.
	maxBodies = 1024
	// maxHeld is how much a stream keeps of the memory in which the longest of its undecided
	// ends was.
	maxHeld = 1 << 10
)

// buffers is an httputil.BufferPool, in which few are big.
type buffers struct{ big atomic.Int64 }

var bigPool = sync.Pool{New: func() any { b := make([]byte, bigBuffer); return &b }}

func (b *buffers) Get() []byte {
	if b.big.Add(1) <= maxBig {
		return *bigPool.Get().(*[]byte)
	}
	b.big.Add(-1)
	return make([]byte, smallBuffer)
}

func (b *buffers) Put(buffer []byte) {
	if len(buffer) == bigBuffer {
		b.big.Add(-1)
		bigPool.Put(&buffer)
	}
}

// scratchPool has memory for the time of one read.
var scratchPool = sync.Pool{New: func() any { b := make([]byte, 0, 2*bigBuffer); return &b }}

func getScratch() []byte { return (*scratchPool.Get().(*[]byte))[:0] }

func putScratch(b []byte) {
	if cap(b) >= 2*bigBuffer && cap(b) <= 8*bigBuffer { // a longer one was rare
		b = b[:0]
		scratchPool.Put(&b)
	}
}

// busy counts what there is at once, and refuses what is beyond its bound.
type busy struct {
	n    atomic.Int64
	most int64
	what string
}

// enter returns an error where there are too many; leave ends what has entered, or was refused.
func (b *busy) enter() error {
	if b.n.Add(1) > b.most {
		return fmt.Errorf("more than %d %s at once in one run: wait for some to end", b.most, b.what)
	}
	return nil
}

func (b *busy) leave() { b.n.Add(-1) }
