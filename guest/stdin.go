package guest

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Stdin is a reader that is read until nobody needs what it has: Stop ends a Read that waits, where the reader has
// a SetReadDeadline (files and connections do), and leaves it without one for who reads next.
type Stdin struct {
	from     io.Reader
	deadline func(time.Time) error // nil where it has none

	mu      sync.Mutex
	stopped bool
	late    bool          // Stop has set a deadline that is over
	idle    chan struct{} // of the Read under way, closed when it returns; nil is none
	err     error
}

// NewStdin returns one that reads from a reader.
func NewStdin(from io.Reader) *Stdin {
	s := &Stdin{from: from}
	if d, ok := from.(interface{ SetReadDeadline(time.Time) error }); ok {
		s.deadline = d.SetReadDeadline
	}
	return s
}

// Read reads, for one goroutine. After Stop it is io.EOF.
func (s *Stdin) Read(p []byte) (int, error) {
	idle := make(chan struct{})
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return 0, io.EOF
	}
	s.idle = idle
	s.mu.Unlock()
	n, err := s.from.Read(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && err != io.EOF && !s.stopped {
		s.err = fmt.Errorf("read standard input: %w", err)
	}
	if s.late {
		_ = s.deadline(time.Time{})
	}
	close(idle)
	s.idle = nil
	return n, err
}

// stopPatience is how long Stop waits for a reader that took its deadline: one that wraps another may not heed it.
const stopPatience = time.Second

// Stop ends the reading, and returns when no Read is under way that can be ended.
func (s *Stdin) Stop() {
	s.mu.Lock()
	s.stopped = true
	idle := s.idle
	if idle != nil && !s.late && s.deadline != nil {
		s.late = s.deadline(time.Unix(1, 0)) == nil
	}
	waits := idle != nil && s.late
	s.mu.Unlock()
	if !waits {
		return
	}
	select {
	case <-idle:
	case <-time.After(stopPatience):
	}
}

// Err is why no more could be read, nil if that was its end, or if Stop came first.
func (s *Stdin) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
