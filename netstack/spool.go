package netstack

import (
	"sync"
	"time"
)

// flushTime bounds how long the end of a network waits for what is still to be
// written of its log and its capture: a disk that has not taken it by then is lost.
const flushTime = 5 * time.Second

// spool has values written by a goroutine of its own, in order, so that a disk that
// stalls holds up neither the link's reader nor a connection. What waits is bounded.
type spool[T any] struct {
	max   int
	write func(T) // called by one goroutine; nil discards
	bell  notify
	done  chan struct{} // closed when writing has ended

	mu      sync.Mutex
	waiting []spooled[T]
	size    int  // of what waits or is being written
	closed  bool // nothing more is accepted
	lost    bool // and nothing of what waits is written
}

type spooled[T any] struct {
	value T
	size  int
}

// newSpool returns one that holds values of max in all, in whatever unit put counts.
func newSpool[T any](max int, write func(T)) *spool[T] {
	s := &spool[T]{max: max, write: write, bell: make(notify, 1), done: make(chan struct{})}
	if write == nil {
		close(s.done)
	} else {
		go s.run()
	}
	return s
}

// put has a value written; false when there is no room for it. It never blocks.
func (s *spool[T]) put(value T, size int) bool {
	if s.write == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.size+size > s.max {
		return false
	}
	s.waiting = append(s.waiting, spooled[T]{value, size})
	s.size += size
	s.bell.WriteNotify()
	return true
}

// force has a value written for which there may be no room: the caller bounds how many there are.
func (s *spool[T]) force(value T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.write == nil || s.closed {
		return
	}
	s.waiting = append(s.waiting, spooled[T]{value: value})
	s.bell.WriteNotify()
}

func (s *spool[T]) run() {
	defer close(s.done)
	for {
		s.mu.Lock()
		batch, closed := s.waiting, s.closed
		s.waiting = nil
		s.mu.Unlock()
		if len(batch) == 0 {
			if closed {
				return
			}
			<-s.bell
			continue
		}
		for _, v := range batch {
			if s.isLost() {
				return
			}
			s.write(v.value)
			s.mu.Lock()
			s.size -= v.size
			s.mu.Unlock()
		}
	}
}

func (s *spool[T]) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// close takes no further value and waits until all are written, for flushTime at most:
// then the rest is lost, and a write that is under way is left to end by itself.
func (s *spool[T]) close() {
	s.mu.Lock()
	s.closed = true
	s.bell.WriteNotify()
	s.mu.Unlock()
	timer := time.NewTimer(flushTime)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
		s.mu.Lock()
		s.lost = true
		s.mu.Unlock()
	}
}
