package unitask

import (
	"context"
	"sync"
	"time"
)

// runClock counts the code's time against its limit, but for what the machine stands still.
type runClock struct {
	mu     sync.Mutex
	timer  *time.Timer // nil until it is started, and when it has ended
	left   time.Duration
	since  time.Time // when it began to run, or to stand
	stands bool
	lost   time.Duration // while it stood
}

// start returns a context that ends, for errTimeout, when the limit is reached.
func (c *runClock) start(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	timed, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.since = limit, time.Now()
	c.timer = time.AfterFunc(limit, func() { cancel(errTimeout) })
	if c.stands {
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

// stand stops the clock.
func (c *runClock) stand() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.timer != nil {
		c.timer.Stop()
		c.left -= now.Sub(c.since)
	}
	c.stands, c.since = true, now
}

// goOn lets it go on.
func (c *runClock) goOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.lost += now.Sub(c.since)
	c.stands, c.since = false, now
	if c.timer != nil {
		c.timer.Reset(max(c.left, 0))
	}
}

// stood is how long it stood.
func (c *runClock) stood() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}
