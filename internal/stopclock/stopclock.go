// Package stopclock counts the time of code against its limit. It does not count while the machine is stopped: while
// somebody is asked, and during a pause.
package stopclock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrTimeout is the cause of a context that a Clock has ended.
var ErrTimeout = errors.New("time limit reached")

// Clock counts down from a limit while it runs. The zero value runs, and has no limit before Start.
type Clock struct {
	mu      sync.Mutex
	timer   *time.Timer // nil before Start and after the end
	left    time.Duration
	since   time.Time // the last start or stop
	stopped bool
	lost    time.Duration // total time while stopped
}

// Start returns a context that ends with ErrTimeout when the limit is reached.
func (c *Clock) Start(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	timed, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.since = limit, time.Now()
	c.timer = time.AfterFunc(limit, func() { cancel(ErrTimeout) })
	if c.stopped {
		c.timer.Stop()
	}
	return timed, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.timer.Stop()
		c.timer = nil
		cancel(nil)
	}
}

// Stop stops the clock.
func (c *Clock) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.timer != nil {
		c.timer.Stop()
		c.left -= now.Sub(c.since)
	}
	c.stopped, c.since = true, now
}

// Resume starts the clock again.
func (c *Clock) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.lost += now.Sub(c.since)
	c.stopped, c.since = false, now
	if c.timer != nil {
		c.timer.Reset(max(c.left, 0))
	}
}

// Stopped returns how long the clock was stopped in total.
func (c *Clock) Stopped() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}
