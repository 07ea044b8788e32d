package broker

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Limits on the memory for the waiting requests of one run: about 100 MiB together.
const (
	// maxRequests bounds concurrent requests; otherwise maxStreams for each connection would be possible.
	// net/http uses some 20 KiB for a request, both sides together.
	maxRequests = 2048
	// bigBuffer is the size of the buffer to copy an answer: eight TLS records.
	bigBuffer = 128 << 10
	// smallBuffer is the size when maxBig answers are already copied with big buffers.
	smallBuffer = 4 << 10
	maxBig      = 128
	// maxBodies bounds concurrent requests with bodies: net/http copies each with its own buffer of up to 32 KiB.
	maxBodies = 1024
	// maxHeld bounds the buffer that a stream keeps after its undecided end was once longer.
	maxHeld = 1 << 10
)

// buffers is an httputil.BufferPool with few big buffers.
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

// scratchPool has buffers for the duration of one read.
var scratchPool = sync.Pool{New: func() any { b := make([]byte, 0, 2*bigBuffer); return &b }}

func getScratch() []byte { return (*scratchPool.Get().(*[]byte))[:0] }

func putScratch(b []byte) {
	if cap(b) >= 2*bigBuffer && cap(b) <= 8*bigBuffer { // a longer one was rare
		b = b[:0]
		scratchPool.Put(&b)
	}
}

// busy counts concurrent uses and refuses those beyond most.
type busy struct {
	n    atomic.Int64
	most int64
	what string
}

// enter counts a use and returns an error if there are too many; leave must follow, also after an error.
func (b *busy) enter() error {
	if b.n.Add(1) > b.most {
		return fmt.Errorf("more than %d %s at once in one run: wait for some to end", b.most, b.what)
	}
	return nil
}

func (b *busy) leave() { b.n.Add(-1) }
