package e2b

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/unitask/unitask"
)

// Where a piece of output came from.
const (
	outStdout = iota
	outStderr
	outPTY
)

// output distributes a process's output to the clients that follow it. Writing never waits for a client.
type output struct {
	mu       sync.Mutex
	readers  map[*reader]bool
	finished *endEvent
	done     chan struct{} // closed at the end; made on demand
}

// reader is a client that follows a process.
type reader struct {
	more chan struct{} // has an element if there is something new
	mu   sync.Mutex
	list []dataEvent
	size int
	lost bool // the client read too slowly
	end  *endEvent
}

type outputStream struct {
	of    *output
	where int
}

func (o *output) stream(where int) *outputStream { return &outputStream{o, where} }

func (w *outputStream) Write(p []byte) (int, error) {
	text := append([]byte(nil), p...)
	e := dataEvent{}
	switch w.where {
	case outStdout:
		e.Stdout = text
	case outStderr:
		e.Stderr = text
	default:
		e.PTY = text
	}
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	for r := range w.of.readers {
		r.add(e, len(p))
	}
	return len(p), nil
}

// The cost of a piece of output, in bytes, and the size below which it is joined with the one before.
const (
	pieceCost = 128
	joined    = 4 << 10
)

// join appends a piece of the same stream; false means that it is of another one, or that the piece before is long.
func (e *dataEvent) join(next dataEvent) bool {
	for _, pair := range [][2]*[]byte{{&e.Stdout, &next.Stdout}, {&e.Stderr, &next.Stderr}, {&e.PTY, &next.PTY}} {
		if len(*pair[0]) > 0 && len(*pair[0]) < joined && len(*pair[1]) > 0 {
			*pair[0] = append((*pair[0])[:len(*pair[0]):len(*pair[0])], *pair[1]...)
			return true
		}
	}
	return false
}

// add adds a piece, unless the client has left too much unread.
func (r *reader) add(e dataEvent, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost || r.size+size+pieceCost > maxUnread {
		r.list, r.size, r.lost = nil, 0, true
	} else if n := len(r.list); n > 0 && size < joined && r.list[n-1].join(e) {
		r.size += size
	} else {
		r.list = append(r.list, e)
		r.size += size + pieceCost
	}
	r.wake()
}

func (r *reader) wake() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// maxReaders bounds the clients that follow a process at once.
const maxReaders = 8

// subscribe returns a reader of the output from now on, nil if there are too many.
func (o *output) subscribe() *reader {
	r := &reader{more: make(chan struct{}, 1)}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.readers) >= maxReaders {
		return nil
	}
	if o.readers == nil {
		o.readers = map[*reader]bool{}
	}
	o.readers[r] = true
	if o.finished != nil {
		r.end = o.finished
		r.wake()
	}
	return r
}

func (o *output) leave(r *reader) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.readers, r)
}

// over returns a channel that is closed when the process has ended.
func (o *output) over() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ending()
}

func (o *output) ending() chan struct{} {
	if o.done == nil {
		o.done = make(chan struct{})
	}
	return o.done
}

// end tells all readers how the process ended.
func (o *output) end(res *unitask.Result, err error) {
	e := endOf(res, err)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished = e
	close(o.ending())
	for r := range o.readers {
		r.mu.Lock()
		r.end = e
		r.mu.Unlock()
		r.wake()
	}
}

// endOf returns the event for how a command ended.
func endOf(res *unitask.Result, err error) *endEvent {
	e := &endEvent{ExitCode: -1}
	why := ""
	switch {
	case res == nil && err != nil:
		why = err.Error()
	case res != nil && res.ExitCode > 128 && res.Error != "": // a signal ended it
		why = res.Error
		e.Status = why
	case res != nil:
		e.ExitCode, e.Exited = int32(res.ExitCode), true
		if e.Status = fmt.Sprintf("exit status %d", res.ExitCode); res.ExitCode != 0 {
			why = e.Status
		}
	}
	if why != "" {
		e.Error = &why
	}
	return e
}

// keepalive is how often an idle stream sends a sign of life.
const keepalive = 30 * time.Second

// take removes what a reader has.
func (r *reader) take() (list []dataEvent, lost bool, end *endEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list, r.list, r.size = r.list, nil, 0
	return list, r.lost, r.end
}

// cutOff ends the connection of a request whose sandbox has ended or was paused. Clients then look whether it is there.
func cutOff() { panic(http.ErrAbortHandler) }

// follow sends a process's events until its end.
func (p *process) follow(ctx context.Context, box *sandbox, from *reader, send func(*eventMessage) error) error {
	defer p.out.leave(from)
	ticker := time.NewTicker(keepalive)
	defer ticker.Stop()
	for {
		list, lost, end := from.take()
		for _, e := range list {
			if err := send(&eventMessage{processEvent{Data: &e}}); err != nil {
				return err
			}
		}
		switch {
		case lost:
			return connect.NewError(connect.CodeResourceExhausted,
				fmt.Errorf("you left %d MiB of output unread: read faster, or write it to a file", maxUnread>>20))
		case end != nil && !box.ready():
			cutOff()
		case end != nil:
			return send(&eventMessage{processEvent{End: end}})
		}
		select {
		case <-from.more:
		case <-ctx.Done():
			return ctx.Err()
		case <-box.session.Done():
			cutOff()
		case <-ticker.C:
			if err := send(&eventMessage{processEvent{Keepalive: &empty{}}}); err != nil {
				return err
			}
		}
	}
}
