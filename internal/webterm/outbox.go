package webterm

import (
	"errors"
	"sync"
)

// outbox holds what a terminal prints until its client takes it.
type outbox struct {
	waits bool // Write waits for room; else a client that takes too little is lost
	mu    sync.Mutex
	text  []byte
	lost  bool          // the client took too little, or is gone
	ended bool          // nothing more comes
	more  chan struct{} // has an element if there is something new
	room  chan struct{} // has an element if something was taken
}

// errUnread means that a client reads too slowly.
var errUnread = errors.New("the terminal's client left too much unread")

func (o *outbox) Write(p []byte) (int, error) {
	for done := 0; ; {
		o.mu.Lock()
		n := len(p) - done
		if o.waits {
			n = min(n, maxUnread-len(o.text))
		} else if len(o.text)+n > maxUnread {
			o.text, o.lost = nil, true
		}
		if o.lost {
			o.mu.Unlock()
			wake(o.more)
			return done, errUnread
		}
		o.text = append(o.text, p[done:done+n]...)
		o.mu.Unlock()
		wake(o.more)
		if done += n; done == len(p) {
			return done, nil
		}
		<-o.room
	}
}

func wake(who chan struct{}) {
	select {
	case who <- struct{}{}:
	default:
	}
}

func (o *outbox) end() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	wake(o.more)
}

// leave releases who writes: the client is gone.
func (o *outbox) leave() {
	o.mu.Lock()
	o.text, o.lost = nil, true
	o.mu.Unlock()
	wake(o.room)
}

// take removes what there is.
func (o *outbox) take() (text []byte, lost, ended bool) {
	o.mu.Lock()
	text, o.text = o.text, nil
	lost, ended = o.lost, o.ended
	o.mu.Unlock()
	wake(o.room)
	return text, lost, ended
}
