package guest

import (
	"io"
	"sync"

	"github.com/unitask/unitask/guest/contract"
)

// feed sends standard input, and a terminal's sizes, to the guest. It has two goroutines: one reads, which may be
// impossible to interrupt. The other writes to the connection, and always ends soon after stop. So the next
// writer can wait for it, and no frame is cut off by another one.
type feed struct {
	stopping sync.Once
	stopped  chan struct{} // closed by stop
	done     chan struct{} // closed when the writer has ended
	stdin    *Stdin        // may be nil
}

func startFeed(c *Conn, stdin io.Reader) *feed {
	f := &feed{stopped: make(chan struct{}), done: make(chan struct{})}
	chunks := make(chan []byte)
	if stdin == nil {
		close(chunks)
	} else {
		f.stdin = NewStdin(stdin)
		go f.read(chunks)
	}
	go f.write(c, chunks)
	return f
}

// read sends what it reads to chunks, and closes chunks at the end. The writer is done with a chunk when it
// receives the next one, so two alternating buffers are enough.
func (f *feed) read(chunks chan<- []byte) {
	var buffers [2][contract.MaxChunk]byte
	for i := 0; ; i = 1 - i {
		n, err := f.stdin.Read(buffers[i][:])
		if n > 0 {
			select {
			case chunks <- buffers[i][:n]:
			case <-f.stopped:
				return
			}
		}
		if err != nil {
			select {
			case <-f.stopped: // an error after stop is not an end of file
			default:
				close(chunks)
			}
			return
		}
	}
}

func (f *feed) write(c *Conn, chunks <-chan []byte) {
	defer close(f.done)
	if c.handOut != nil {
		select {
		case <-f.stopped:
			return
		case <-c.closed:
			return
		case <-c.handOut.done:
		}
		if c.send(contract.FrameContinue, nil) != nil {
			return
		}
	}
	for {
		select {
		case <-f.stopped:
			return
		case <-c.closed:
			return
		case size := <-c.resized:
			if c.resize(size) != nil {
				return
			}
		case chunk, more := <-chunks:
			if !more {
				if c.send(contract.FrameStdinEnd, nil) != nil || c.resized == nil {
					return
				}
				chunks = nil
				continue
			}
			if c.send(contract.FrameStdin, chunk) != nil {
				return
			}
		}
	}
}

// stop ends the feed after the current frame.
func (f *feed) stop() {
	f.stopping.Do(func() {
		close(f.stopped)
		if f.stdin != nil {
			f.stdin.Stop()
		}
	})
}

// wait stops the feed and returns when it writes no more.
func (f *feed) wait() {
	f.stop()
	<-f.done
}
