package broker

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// An answer in which values are looked for is read by a goroutine of its own: it is known so when
// the server is quiet, and a long one is read ahead: the server's TLS is opened on one processor
// while what came before is looked at and sealed for the guest on another.
const (
	aheadAfter = 1 << 20   // bytes of an answer, before which small pieces do
	aheadPiece = 128 << 10 // bytes
	smallPiece = 4 << 10   // bytes, at first
	aheadMost  = 2         // pieces that have been read, for one answer
	maxAhead   = 64        // answers at once with large pieces, of one run
)

var (
	aheadPool = sync.Pool{New: func() any { b := make([]byte, aheadPiece); return &b }}
	smallPool = sync.Pool{New: func() any { b := make([]byte, smallPiece); return &b }}
)

// readAhead is a body of which the next pieces are read while one is used. next and Close are for one
// goroutine; stop may be called from another one, and ends a next that waits.
type readAhead struct {
	from io.ReadCloser
	at   *atomic.Int64 // how many of the run have large pieces

	pieces chan aheadOf // nil until it begins
	closed chan struct{}
	once   sync.Once
	failed error // of closing from
	over   sync.WaitGroup
	piece  aheadOf // in use
	timer  *time.Timer
}

// aheadOf is a piece, and what its read ended with.
type aheadOf struct {
	buffer *[]byte
	n      int
	err    error
}

func newReadAhead(from io.ReadCloser, at *atomic.Int64) *readAhead {
	return &readAhead{from: from, at: at, closed: make(chan struct{})}
}

// errQuiet is next's error where nothing came in time.
var errQuiet = errors.New("nothing comes")

// next returns the next piece, good until it is called again, and the error that its read ended with.
// Where nothing comes for wait, the error is errQuiet; 0 waits for as long as it takes.
func (r *readAhead) next(wait time.Duration) ([]byte, error) {
	if r.piece.err != nil {
		return nil, r.piece.err
	}
	if r.pieces == nil {
		r.pieces = make(chan aheadOf, aheadMost-1)
		r.over.Go(r.read)
	}
	r.drop()
	var quiet <-chan time.Time
	if wait > 0 {
		if r.timer == nil {
			r.timer = time.NewTimer(wait)
		} else {
			r.timer.Reset(wait)
		}
		defer r.timer.Stop()
		quiet = r.timer.C
	}
	select {
	case r.piece = <-r.pieces:
		return (*r.piece.buffer)[:r.piece.n], r.piece.err
	case <-quiet:
		return nil, errQuiet
	case <-r.closed:
		return nil, io.ErrClosedPipe
	}
}

// read reads until the body's end.
func (r *readAhead) read() {
	large, got := false, 0
	defer func() {
		if large {
			r.at.Add(-1)
		}
	}()
	for {
		if !large && got >= aheadAfter {
			if large = r.at.Add(1) <= maxAhead; !large {
				r.at.Add(-1)
				got = 0 // to be tried again later
			}
		}
		pool := &smallPool
		if large {
			pool = &aheadPool
		}
		p := aheadOf{buffer: pool.Get().(*[]byte)}
		p.n, p.err = r.from.Read(*p.buffer)
		got += p.n
		select {
		case r.pieces <- p:
		case <-r.closed:
			p.release()
			return
		}
		if p.err != nil {
			return
		}
	}
}

// release gives a piece's buffer back.
func (p *aheadOf) release() {
	switch {
	case p.buffer == nil:
	case len(*p.buffer) == aheadPiece:
		aheadPool.Put(p.buffer)
	default:
		smallPool.Put(p.buffer)
	}
	p.buffer = nil
}

// drop gives the piece in use back.
func (r *readAhead) drop() { r.piece.release() }

// stop ends a read that is under way, and every later one.
func (r *readAhead) stop() error {
	r.once.Do(func() {
		close(r.closed)
		r.failed = r.from.Close()
	})
	return r.failed
}

// Close gives back what was read.
func (r *readAhead) Close() error {
	err := r.stop()
	r.over.Wait()
	r.drop()
	for {
		select {
		case p := <-r.pieces:
			p.release()
		default:
			if r.piece.err == nil {
				r.piece.err = io.ErrClosedPipe
			}
			return err
		}
	}
}
