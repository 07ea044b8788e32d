package guest

import (
	"io"
	"sync"

	"github.com/unitask/unitask/guest/contract"
)

// feed sends standard input, and a terminal's sizes, to the guest. Two goroutines share the work: one reads,
// which nothing may be able to interrupt, and one writes to the connection, which
// always ends soon after stop. So whoever wants to write next can wait for the writer,
// and no frame is cut by another one.
type feed struct {
	stopping sync.Once
	stopped  chan struct{} // closed by stop
	done     chan struct{} // closed when the writer has ended
	stdin    *Stdin        // nil is none
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

// read passes on what it reads, and closes chunks when there is no more. The writer has done with
// a chunk when it takes the next one, so two buffers in turn are enough.
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
			case <-f.stopped: // which may be why: it is no end
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

// stop has the feed end behind the frame that is under way.
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
