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
// are stopped. unitask asks the caller of the newest step or background command that can answer. If there is none, it
// asks the first that comes while the question is open. unitask approve answers for every session.

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

// askers are the callers of a session's running steps and commands, who answer questions. mu guards the fields.
type askers struct {
	mu   sync.Mutex
	list []*run.Approver
	came chan struct{} // closed when there is one, while somebody waits for it
}

// AnswerBy has approve answer the session's questions until done is called. It is for a caller that waits for a
// background command. A nil approve answers none.
func (s *Session) AnswerBy(approve run.Approver) (done func()) { return s.askers.add(approve) }

// add registers a caller for questions until done is called.
func (a *askers) add(approve run.Approver) (done func()) {
	if approve == nil {
		return func() {}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := &approve
	a.list = append(a.list, at)
	if a.came != nil {
		close(a.came)
		a.came = nil
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.list = slices.DeleteFunc(a.list, func(o *run.Approver) bool { return o == at })
	}
}

// ask asks the newest caller, or the first that comes. It is a run.Approver.
func (a *askers) ask(ctx context.Context, q run.Question) run.Verdict {
	for {
		approve, came := a.last()
		if approve != nil {
			return approve(ctx, q)
		}
		select {
		case <-came:
		case <-ctx.Done():
			return ""
		}
	}
}

// last returns the caller to ask. If there is none, came is closed when one comes.
func (a *askers) last() (approve run.Approver, came <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) > 0 {
		return *a.list[len(a.list)-1], nil
	}
	if a.came == nil {
		a.came = make(chan struct{})
	}
	return nil, a.came
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
