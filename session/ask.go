package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/run"
)

// When a session's code connects to a host that needs approval, the whole session and the time limits of all its steps
// are stopped. unitask asks the callers that wait for a step, the newest first; unitask approve answers for every
// session.

// stepClocks are the clocks of the running steps of a session.
type stepClocks struct {
	mu     sync.Mutex
	open   map[*stopclock.Clock]bool
	stands bool
}

// start is Clock.Start for a step.
func (c *stepClocks) start(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clock := new(stopclock.Clock)
	if c.stands {
		clock.Stop()
	}
	timed, stop := clock.Start(ctx, limit)
	if c.open == nil {
		c.open = map[*stopclock.Clock]bool{}
	}
	c.open[clock] = true
	return timed, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, clock)
		stop()
	}
}

func (c *stepClocks) Stop()   { c.all(true, (*stopclock.Clock).Stop) }
func (c *stepClocks) Resume() { c.all(false, (*stopclock.Clock).Resume) }

func (c *stepClocks) all(stands bool, do func(*stopclock.Clock)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stands = stands
	for clock := range c.open {
		do(clock)
	}
}

// still reports whether the clocks are stopped.
func (c *stepClocks) still() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stands
}

// askers are the callers of a session's running steps, who answer questions. mu guards list.
type askers struct {
	mu   sync.Mutex
	list []*run.Approver
}

// add registers a step's caller for questions until done is called.
func (a *askers) add(approve run.Approver) (done func()) {
	if approve == nil {
		return func() {}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := &approve
	a.list = append(a.list, at)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.list = slices.DeleteFunc(a.list, func(o *run.Approver) bool { return o == at })
	}
}

// last returns the caller to ask, nil if nobody waits for a step.
func (a *askers) last() run.Approver {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) == 0 {
		return nil
	}
	return *a.list[len(a.list)-1]
}

// standing prevents pauses and forks of a session while somebody is asked, until release. The clocks of all steps are
// stopped. It returns an error if a pause or a fork takes longer than ctx.
func (s *Session) standing(ctx context.Context) (clock approval.Clock, release func(), err error) {
	if err := s.change(ctx); err != nil {
		return nil, nil, err
	}
	defer func() { <-s.changing }()
	return &s.clocks, s.usage.begin(false), nil
}
