package mcp

import (
	"sync"
	"sync/atomic"

	"github.com/unitask/unitask"
)

// Progress tells calls that wait for a machine what is fetched and built.
type Progress struct {
	next func(unitask.Event)

	mu    sync.Mutex
	waits map[*live]bool
}

// NewProgress returns a Progress that passes every event on to next, from several goroutines at once. Its Event goes
// into the options of the runtime, and itself into those of the server.
func NewProgress(next func(unitask.Event)) *Progress {
	return &Progress{next: next, waits: map[*live]bool{}}
}

// Event receives an event. An event about parts or images goes to every waiting call of this host's user, because these
// are fetched and built once for all.
func (p *Progress) Event(e unitask.Event) {
	p.next(e)
	if e.Kind != unitask.EventImage || e.RunID != "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.waits {
		l.say(line(e.Message))
	}
}

// of returns the sink of a run's events. Until the code starts, its call learns what is fetched and built. A remote
// caller does not learn what others have built. After done nothing refers to the call: a session's events outlive it.
func (p *Progress) of(caller unitask.Caller, l *live, hide hider) (events func(unitask.Event), done func()) {
	var call atomic.Pointer[live]
	call.Store(l)
	done = func() {
		l := call.Swap(nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waits, l)
	}
	if l.token != nil && !remote(caller) {
		p.mu.Lock()
		p.waits[l] = true
		p.mu.Unlock()
	}
	far := remote(caller)
	return func(e unitask.Event) {
		p.Event(e)
		l := call.Load()
		if l == nil {
			return
		}
		if l.onRun != nil && e.RunID != "" {
			l.onRun(e.RunID)
		}
		switch e.Kind {
		case unitask.EventStarted:
			done()
		case unitask.EventImage, unitask.EventFiles, unitask.EventRetry, unitask.EventFallback:
			text := e.Message
			if far {
				text = hide.all(text)
			}
			l.say(line(text))
		}
	}, done
}
