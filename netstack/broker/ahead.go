package broker

import (
	"io"
	"sync"
	"sync/atomic"
)

// A long answer is read ahead: the server's TLS is opened on one processor while what came before is
// looked at and sealed for the guest on another.
const (
	aheadAfter = 1 << 20   // bytes of an answer, before which it is not worth it
	aheadPiece = 128 << 10 // bytes
	aheadMost  = 2         // pieces that have been read, for one answer
	maxAhead   = 64        // answers at once, of one run; others are read as they are needed
)

var aheadPool = sync.Pool{New: func() any { b := make([]byte, aheadPiece); return &b }}

// readAhead is a body of which the next pieces are read while one is used. Read and Close are for one
// goroutine, as a body's are.
type readAhead struct {
	from io.ReadCloser
	at   *atomic.Int64 // how many of the run read ahead
	read int64         // bytes, before it began to

	pieces chan aheadOf // nil until it begins
	closed chan struct{}
	over   sync.WaitGroup
	piece  aheadOf // in use
	left   []byte  // of it
}

// aheadOf is a piece, and what its read ended with.
type aheadOf struct {
	buffer *[]byte
	n      int
	err    error
}

func newReadAhead(from io.ReadCloser, at *atomic.Int64) *readAhead {
	return &readAhead{from: from, at: at}
}

func (r *readAhead) Read(p []byte) (int, error) {
	if r.pieces == nil {
		if r.read < aheadAfter || !r.begin() {
			n, err := r.from.Read(p)
			r.read += int64(n)
			return n, err
		}
	}
	for len(r.left) == 0 {
		if r.piece.err != nil {
			return 0, r.piece.err
		}
		r.drop()
		r.piece = <-r.pieces
		r.left = (*r.piece.buffer)[:r.piece.n]
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// begin has a goroutine read, unless there are too many.
func (r *readAhead) begin() bool {
	if r.at.Add(1) > maxAhead {
		r.at.Add(-1)
		r.read = 0 // to be tried again later
		return false
	}
	r.pieces, r.closed = make(chan aheadOf, aheadMost-1), make(chan struct{})
	r.over.Go(func() {
		for {
			p := aheadOf{buffer: aheadPool.Get().(*[]byte)}
			p.n, p.err = r.from.Read(*p.buffer)
			select {
			case r.pieces <- p:
			case <-r.closed:
				aheadPool.Put(p.buffer)
				return
			}
			if p.err != nil {
				return
			}
		}
	})
	return true
}

// drop gives the piece in use back.
func (r *readAhead) drop() {
	if r.piece.buffer != nil {
		aheadPool.Put(r.piece.buffer)
		r.piece.buffer, r.left = nil, nil
	}
}

// Close ends a read that is under way.
func (r *readAhead) Close() error {
	if r.pieces == nil {
		return r.from.Close()
	}
	select {
	case <-r.closed:
		return nil
	default:
	}
	close(r.closed)
	err := r.from.Close()
	r.over.Wait()
	r.at.Add(-1)
	r.drop()
	for {
		select {
		case p := <-r.pieces:
			aheadPool.Put(p.buffer)
		default:
			if r.piece.err == nil {
				r.piece.err = io.ErrClosedPipe
			}
			return err
		}
	}
}
