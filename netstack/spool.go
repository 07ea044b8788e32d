package netstack

import (
	"sync"
	"time"
)

// flushTime bounds how long closing a network waits for the rest of its log and its capture. What the disk has not
// accepted by then is lost.
const flushTime = 5 * time.Second

// spool writes values in order in a separate goroutine, so that a stalled disk blocks neither the link's reader
// nor a connection. The waiting values are bounded.
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

// newSpool returns a spool for values of max in total, in the unit that put counts.
func newSpool[T any](max int, write func(T)) *spool[T] {
	s := &spool[T]{max: max, write: write, bell: make(notify, 1), done: make(chan struct{})}
	if write == nil {
		close(s.done)
	} else {
		go s.run()
	}
	return s
}

// put queues a value; it returns false when there is no room. It never blocks.
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

// force queues a value even without room: the caller bounds the number of such values.
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

// close accepts no further value and waits, for at most flushTime, until all are written. Then the rest is lost, and a
// current write may end by itself.
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
