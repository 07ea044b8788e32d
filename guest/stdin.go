package guest

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Stdin reads from a reader until Stop. If the reader has a SetReadDeadline (files and connections do), Stop ends a
// waiting Read. It then removes the deadline for the next user of the reader.
type Stdin struct {
	from     io.Reader
	deadline func(time.Time) error // nil if the reader has none

	mu      sync.Mutex
	stopped bool
	late    bool          // Stop has set a deadline in the past
	idle    chan struct{} // for the current Read, closed when it returns; else nil
	err     error
}

// NewStdin returns a Stdin that reads from a reader.
func NewStdin(from io.Reader) *Stdin {
	s := &Stdin{from: from}
	if d, ok := from.(interface{ SetReadDeadline(time.Time) error }); ok {
		s.deadline = d.SetReadDeadline
	}
	return s
}

// Read reads, for one goroutine. After Stop it returns io.EOF.
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

// stopPatience bounds Stop's wait for a reader that accepted its deadline: a wrapping reader may ignore it.
const stopPatience = time.Second

// Stop ends the reading, and returns when every Read that can be ended has returned.
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

// Err returns why reading failed; nil after the end of the data, or if Stop came first.
func (s *Stdin) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
