package fleet

import (
	"runtime"
	"sync"

	"github.com/nats-io/nats.go"
)

// ear subscribes to a subject. It drops messages that are too large, or that arrive faster than they are read.
type ear struct {
	sub   *nats.Subscription
	ready chan struct{} // there is something to take

	mu       sync.Mutex
	waiting  []*nats.Msg
	messages int // that may wait
	bytes    int // of the waiting messages
}

// Limits of received messages that are not read yet.
const (
	heardMessages = 4096 // of what a run, or a session's call, prints
	heardBytes    = 32 << 20
	askedMessages = 64 // of a worker's questions
	askedBytes    = 1 << 20
)

func hear(nc *nats.Conn, subject string, messages, bytes int) (*ear, error) {
	e := &ear{ready: make(chan struct{}, 1), messages: messages, bytes: bytes}
	sub, err := nc.Subscribe(subject, e.put)
	if err != nil {
		return nil, err
	}
	e.sub = sub
	return e, sub.SetPendingLimits(messages, bytes)
}

func (e *ear) put(m *nats.Msg) {
	e.mu.Lock()
	if len(e.waiting) < e.messages && m.Size() <= e.bytes {
		e.waiting = append(e.waiting, m)
		e.bytes -= m.Size()
	}
	e.mu.Unlock()
	e.again()
}

// again signals ready if more messages are waiting.
func (e *ear) again() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) == 0 {
		return
	}
	select {
	case e.ready <- struct{}{}:
	default:
	}
}

// take returns the next message, nil if there is none now.
func (e *ear) take() *nats.Msg {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) == 0 {
		e.waiting = nil
		return nil
	}
	m := e.waiting[0]
	e.waiting = e.waiting[1:]
	e.bytes += m.Size()
	return m
}

// last is like take, but also waits for messages that have arrived and are not queued yet.
func (e *ear) last() *nats.Msg {
	for {
		if m := e.take(); m != nil {
			return m
		}
		if n, _, err := e.sub.Pending(); err != nil || n <= 0 {
			return e.take()
		}
		runtime.Gosched()
	}
}

// drain reads all messages that have arrived. It reads at most as many again that arrive meanwhile, so that a sender
// can't keep it busy.
func (e *ear) drain(take func(*nats.Msg)) {
	for range 2 * e.messages { // waiting, and not queued yet
		m := e.last()
		if m == nil {
			return
		}
		take(m)
	}
}

func (e *ear) close() { _ = e.sub.Unsubscribe() }
