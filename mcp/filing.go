package mcp

import (
	"context"
	"sync"
)

// filing bounds the calls that hold files in memory: of all callers, and of one. A machine can delay a call for
// any time, so one caller gets at most half of the slots.
type filing struct {
	all chan struct{} // held by calls

	mu  sync.Mutex
	own map[string]*filer // callers with calls or waiting calls
}

type filer struct {
	calls chan struct{} // held by its calls
	users int           // calls, and waiting ones
}

func newFiling(most int) *filing {
	return &filing{all: make(chan struct{}, most), own: map[string]*filer{}}
}

// enter waits for a slot for a caller; leave releases it.
func (f *filing) enter(ctx context.Context, caller string) (leave func(), err error) {
	f.mu.Lock()
	own := f.own[caller]
	if own == nil {
		own = &filer{calls: make(chan struct{}, max(cap(f.all)/2, 1))}
		f.own[caller] = own
	}
	own.users++
	f.mu.Unlock()
	var held []chan struct{}
	leave = func() {
		for _, c := range held {
			<-c
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(f.own, caller)
		}
	}
	for _, c := range []chan struct{}{own.calls, f.all} { // its own first: waiting for that blocks nobody
		select {
		case c <- struct{}{}:
			held = append(held, c)
		case <-ctx.Done():
			leave()
			return nil, context.Cause(ctx)
		}
	}
	return leave, nil
}
