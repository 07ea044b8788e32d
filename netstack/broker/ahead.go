package broker

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// An answer that is searched for values is read by a separate goroutine. This shows when the server is quiet, and long
// answers are read ahead. One processor decrypts the server's TLS while another searches the previous piece and
// encrypts it for the guest.
const (
	aheadAfter = 1 << 20   // bytes of an answer that are read in small pieces first
	aheadPiece = 128 << 10 // bytes
	smallPiece = 4 << 10   // bytes, at first
	aheadMost  = 2         // pieces read ahead for one answer
	maxAhead   = 64        // answers of one run that are read in large pieces at once
)

var (
	aheadPool = sync.Pool{New: func() any { b := make([]byte, aheadPiece); return &b }}
	smallPool = sync.Pool{New: func() any { b := make([]byte, smallPiece); return &b }}
)

// readAhead is a body whose next pieces are read while one is used. One goroutine calls next and Close; another
// may call stop, which ends a waiting next.
type readAhead struct {
	from io.ReadCloser
	at   *atomic.Int64 // number of the run's answers with large pieces

	pieces chan aheadOf // nil until reading begins
	closed chan struct{}
	once   sync.Once
	failed error // the error of closing from
	over   sync.WaitGroup
	piece  aheadOf // in use
	timer  *time.Timer
}

// aheadOf is a piece, and the error that ended its read.
type aheadOf struct {
	buffer *[]byte
	n      int
	err    error
}

func newReadAhead(from io.ReadCloser, at *atomic.Int64) *readAhead {
	return &readAhead{from: from, at: at, closed: make(chan struct{})}
}

// errQuiet is next's error if nothing arrived in time.
var errQuiet = errors.New("nothing comes")

// next returns the next piece, valid until the next call, and the error that ended its read. If nothing arrives
// for wait, the error is errQuiet; 0 waits without limit.
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

// read reads until the end of the body.
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
				got = 0 // try again later
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

// release returns a piece's buffer to its pool.
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

// drop releases the current piece.
func (r *readAhead) drop() { r.piece.release() }

// stop ends the current read and every later one.
func (r *readAhead) stop() error {
	r.once.Do(func() {
		close(r.closed)
		r.failed = r.from.Close()
	})
	return r.failed
}

// Close stops reading and releases all buffers.
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
