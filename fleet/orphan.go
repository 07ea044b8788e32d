package fleet

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// delivery is a message of the queue.
type delivery struct {
	msg    jetstream.Msg
	orphan string // its run's worker, which was not heard of for a lease; the run is noted as in hand. "" is none
}

// maxWatched bounds the runs of a tenant whose worker is looked for at once: more come again later.
const maxWatched = 256

// watch waits for a sign of life of the worker that has claimed a run, and takes no slot for that. The message comes
// again when that worker has not been heard of for a lease, which is so for all workers when NATS itself was away: so
// it gets as long again to say that it is there. Where it does not, the message is the lane's next one. False is that
// too many are waited for.
func (c *claim) watch(ctx context.Context) bool {
	if c.lane.watched.Add(1) > maxWatched {
		c.lane.watched.Add(-1)
		return false
	}
	c.w.running.Go(func() {
		defer c.lane.watched.Add(-1)
		if !c.orphaned(ctx) {
			c.w.leave(c.lane.tenant, c.run)
			c.w.later(c.msg)
		}
	})
	return true
}

// orphaned hands the message on if the run's worker stays away.
func (c *claim) orphaned(ctx context.Context) bool {
	tick := time.NewTicker(c.w.config.Times.Beat / 4)
	defer tick.Stop()
	var next chan<- delivery // nil: not yet
	for end := time.Now().Add(c.w.config.Times.Lease); ; {
		lives, err := c.lane.lives(ctx, c.entry.Worker)
		if err != nil || lives {
			return false
		}
		if next == nil && time.Now().After(end) {
			next = c.lane.orphans
		}
		if next != nil {
			c.w.woken()
		}
		select {
		case next <- delivery{c.msg, c.entry.Worker}:
			return true
		case <-ctx.Done():
			return false
		case <-c.w.drain:
			return false
		case <-tick.C:
			_ = c.msg.InProgress()
		}
	}
}
