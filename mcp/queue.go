package mcp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// queue bounds the current runs and the waiting calls. When a run ends, the caller with the fewest current runs is
// next; of several, the one that was served least recently. So a caller with one call does not wait for another's
// fifty.
type queue struct {
	slots     int // runs at once
	most      int // waiting calls
	perCaller int // of one caller, current and waiting; 0 means no limit
	perMinute int // of one caller; 0 means no limit
	gauge     func(waiting, running int)

	shared atomic.Bool // there may be several callers

	mu      sync.Mutex
	waiting []*ticket
	running int
	served  uint64 // number of admitted calls
	callers map[string]*callerLoad
}

// callerLoad is one caller's load.
type callerLoad struct {
	running, waiting int
	served           uint64        // when it was last admitted
	rate, looks      *rate.Limiter // of runs, and of listings and readings of records
}

// ticket is a waiting call.
type ticket struct {
	load *callerLoad
	in   chan struct{} // closed when it is admitted
}

// maxCallers bounds the callers whose rate is remembered.
const maxCallers = 10_000

func newQueue(concurrent, most, perCaller, perMinute int, gauge func(waiting, running int)) *queue {
	return &queue{slots: concurrent, most: most, perCaller: perCaller, perMinute: perMinute, gauge: gauge,
		callers: map[string]*callerLoad{}}
}

// errBusy means that a call was refused.
var errBusy = errors.New("busy")

// LimitError names the limit that a caller has reached.
type LimitError struct {
	Limit string // the limit's name: "queue", "caller-concurrent", …
	Most  int
	Text  string        // what is in progress, and the remedy
	After time.Duration // when there is room again, if that is known
}

func (e *LimitError) Error() string { return errBusy.Error() + ": " + e.Text }
func (e *LimitError) Unwrap() error { return errBusy }

// share notes that there are several callers: none of them gets all the slots, or all the places to wait.
func (q *queue) share() { q.shared.Store(true) }

// slotsOfOne returns the runs that one caller may have at once. With several callers and several slots, one slot is
// always for another caller. A run can take a day, and is not ended for waiting calls.
func (q *queue) slotsOfOne() int {
	if q.shared.Load() && q.slots > 1 {
		return q.slots - 1
	}
	return q.slots
}

// placesOfOne returns the calls of one caller that may wait: half of all if there are several callers.
func (q *queue) placesOfOne() int {
	if q.shared.Load() && q.most > 1 {
		return q.most / 2
	}
	return q.most
}

// enter waits for a slot; leave releases it. ahead is called with the number of waiting calls if it has to wait.
// The error is a *LimitError if there is no room to wait.
func (q *queue) enter(ctx context.Context, caller string, ahead func(int)) (leave func(), err error) {
	t, before, err := q.admit(caller)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.in:
	default:
		ahead(before)
		select {
		case <-t.in:
		case <-ctx.Done():
			if q.giveUp(t) {
				return nil, context.Cause(ctx)
			}
		}
	}
	return sync.OnceFunc(func() {
		q.change(func() {
			q.running--
			t.load.running--
			q.letIn()
		})
	}), nil
}

// giveUp removes a ticket from the queue; false means that it was admitted meanwhile.
func (q *queue) giveUp(t *ticket) (out bool) {
	q.change(func() {
		for i, other := range q.waiting {
			if other == t {
				q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
				t.load.waiting--
				out = true
				return
			}
		}
	})
	return out
}

// admit puts a call into the queue, or returns why not.
func (q *queue) admit(caller string) (t *ticket, before int, err error) {
	q.change(func() {
		load := q.load(caller)
		direct := q.running < q.slots && load.running < q.slotsOfOne() && load.waiting == 0
		switch {
		case !direct && len(q.waiting) >= q.most:
			err = &LimitError{Limit: "queue", Most: q.most,
				Text: fmt.Sprintf("%d runs are under way and %d wait: try again in a moment", q.running, len(q.waiting))}
		case !direct && load.waiting >= q.placesOfOne():
			err = &LimitError{Limit: "caller-queue", Most: q.placesOfOne(),
				Text: fmt.Sprintf("%d of your calls wait, and the other places are for other callers: wait for one", load.waiting)}
		case q.perCaller > 0 && load.running+load.waiting >= q.perCaller:
			err = &LimitError{Limit: "caller-concurrent", Most: q.perCaller,
				Text: fmt.Sprintf("you have %d runs under way, which is your bound: wait for one", load.running+load.waiting)}
		case !q.inRate(load):
			err = tooOften(load.rate, q.perMinute, "runs")
		default:
			t, before = &ticket{load, make(chan struct{})}, len(q.waiting)
			q.waiting = append(q.waiting, t)
			load.waiting++
			q.letIn()
		}
	})
	return t, before, err
}

// count counts a run without a slot against its caller's rate.
func (q *queue) count(caller string) (err error) {
	q.change(func() {
		if load := q.load(caller); !q.inRate(load) {
			err = tooOften(load.rate, q.perMinute, "runs")
		}
	})
	return err
}

// runLooks is the number of listings and readings of records for each run that a caller's rate allows.
const runLooks = 10

// look counts a listing or a reading of records against its caller's rate.
func (q *queue) look(caller string) (err error) {
	q.change(func() {
		if load := q.load(caller); q.perMinute > 0 && !load.looks.Allow() {
			err = tooOften(load.looks, q.perMinute*runLooks, "listings and readings")
		}
	})
	return err
}

// queueStats is a caller's load, and the limits that it meets.
type queueStats struct {
	Running         int `json:"running"`
	Waiting         int `json:"waiting"`
	MostRunning     int `json:"mostRunning"`
	MostWaiting     int `json:"mostWaiting"`
	CallerMost      int `json:"callerMost,omitempty"`      // running and waiting; 0 is no limit
	CallerPerMinute int `json:"callerPerMinute,omitempty"` // 0 is no limit
}

// stats returns a caller's calls. With all, it returns those of all callers.
func (q *queue) stats(caller string, all bool) (s queueStats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s = queueStats{MostRunning: q.slotsOfOne(), MostWaiting: q.placesOfOne(), CallerMost: q.perCaller,
		CallerPerMinute: q.perMinute}
	if load := q.callers[caller]; load != nil {
		s.Running, s.Waiting = load.running, load.waiting
	}
	if all {
		s.Running, s.Waiting, s.MostRunning, s.MostWaiting = q.running, len(q.waiting), q.slots, q.most
	}
	return s
}

func (q *queue) inRate(load *callerLoad) bool { return q.perMinute == 0 || load.rate.Allow() }

func tooOften(limit *rate.Limiter, most int, what string) error {
	next := limit.Reserve()
	after := (next.Delay() + time.Millisecond).Truncate(time.Millisecond)
	next.Cancel()
	text := fmt.Sprintf("%d %s a minute is your bound: try again in %d s", most, what, int(math.Ceil(after.Seconds())))
	return &LimitError{Limit: "caller-per-minute", Most: most, Text: text, After: after}
}

func perMinute(most int) *rate.Limiter { return rate.NewLimiter(rate.Limit(float64(most)/60), most) }

// load returns a caller's load.
func (q *queue) load(caller string) *callerLoad {
	load := q.callers[caller]
	if load == nil {
		for name, l := range q.callers { // remove idle callers to make room
			if len(q.callers) < maxCallers {
				break
			}
			if l.running+l.waiting == 0 {
				delete(q.callers, name)
			}
		}
		load = &callerLoad{rate: perMinute(q.perMinute), looks: perMinute(q.perMinute * runLooks)}
		q.callers[caller] = load
	}
	return load
}

// letIn fills the free slots.
func (q *queue) letIn() {
	for q.running < q.slots {
		next := -1
		for i, t := range q.waiting {
			if t.load.running < q.slotsOfOne() && (next < 0 || t.load.before(q.waiting[next].load)) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		t := q.waiting[next]
		q.waiting = append(q.waiting[:next], q.waiting[next+1:]...)
		q.served++
		q.running++
		t.load.waiting--
		t.load.running++
		t.load.served = q.served
		close(t.in)
	}
}

// before decides which of two callers is next.
func (l *callerLoad) before(other *callerLoad) bool {
	if l.running != other.running {
		return l.running < other.running
	}
	return l.served < other.served
}

func (q *queue) change(do func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	do()
	q.gauge(len(q.waiting), q.running)
}
