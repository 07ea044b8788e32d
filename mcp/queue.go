package mcp

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/time/rate"
)

// queue bounds the runs under way and the calls that wait for one.
type queue struct {
	slots     chan struct{}
	most      int // waiting
	perCaller int
	perMinute int
	gauge     func(waiting, running int)

	mu      sync.Mutex
	waiting int
	running int
	callers map[string]*callerLoad
}

// callerLoad is what one caller has under way.
type callerLoad struct {
	runs int
	rate *rate.Limiter
}

// maxCallers bounds the callers that are remembered for their rate.
const maxCallers = 10_000

func newQueue(concurrent, most, perCaller, perMinute int, gauge func(waiting, running int)) *queue {
	return &queue{slots: make(chan struct{}, concurrent), most: most, perCaller: perCaller, perMinute: perMinute, gauge: gauge, callers: map[string]*callerLoad{}}
}

// errBusy says that a call was not taken on.
var errBusy = errors.New("busy")

// enter waits for a slot; leave gives it back. ahead is told of how many are before it,
// if it has to wait. The error wraps errBusy where there is no room to wait.
func (q *queue) enter(ctx context.Context, caller string, ahead func(int)) (leave func(), err error) {
	load, before, err := q.admit(caller)
	if err != nil {
		return nil, err
	}
	entered := false
	defer func() {
		if !entered {
			q.change(func() { q.waiting--; load.runs-- })
		}
	}()
	select {
	case q.slots <- struct{}{}:
	default:
		ahead(before)
		select {
		case q.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	entered = true
	q.change(func() { q.waiting--; q.running++ })
	return sync.OnceFunc(func() {
		<-q.slots
		q.change(func() { q.running--; load.runs-- })
	}), nil
}

// admit counts a call as waiting, or says why not.
func (q *queue) admit(caller string) (load *callerLoad, before int, err error) {
	q.change(func() {
		if load = q.callers[caller]; load == nil {
			for name, l := range q.callers { // any that is idle makes room
				if len(q.callers) < maxCallers {
					break
				}
				if l.runs == 0 {
					delete(q.callers, name)
				}
			}
			load = &callerLoad{rate: rate.NewLimiter(rate.Limit(float64(q.perMinute)/60), q.perMinute)}
			q.callers[caller] = load
		}
		switch {
		case q.waiting >= q.most && len(q.slots) == cap(q.slots):
			err = fmt.Errorf("%w: %d runs are under way and %d wait: try again in a moment", errBusy, q.running, q.waiting)
		case q.perCaller > 0 && load.runs >= q.perCaller:
			err = fmt.Errorf("%w: you have %d runs under way, which is your bound: wait for one", errBusy, load.runs)
		case q.perMinute > 0 && !load.rate.Allow():
			err = fmt.Errorf("%w: %d runs a minute is your bound: try again in a moment", errBusy, q.perMinute)
		default:
			before = q.waiting
			q.waiting++
			load.runs++
		}
	})
	return load, before, err
}

func (q *queue) change(do func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	do()
	q.gauge(q.waiting, q.running)
}
