package fleet

import (
	"context"
	"errors"
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
// it gets as long again to answer. If it does not, the message is the next one of the tenant's queue. False means that
// too many are being waited for.
func (c *claim) watch(ctx context.Context) bool {
	if c.queue.watched.Add(1) > maxWatched {
		c.queue.watched.Add(-1)
		return false
	}
	c.w.running.Go(func() {
		defer c.queue.watched.Add(-1)
		if !c.orphaned(ctx) {
			c.w.leave(c.queue.tenant, c.run)
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
		lives, err := c.queue.lives(ctx, c.entry.Worker)
		if lives {
			_ = c.queue.missed.Purge(ctx, c.entry.Worker)
		}
		if err != nil || lives {
			return false
		}
		if next == nil && (time.Now().After(end) || c.queue.missedFor(ctx, c.entry.Worker) > c.w.config.Times.Lease) {
			next = c.queue.orphans
			c.w.woken() // once: many of these are not to keep it from sleeping
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

// missedFor returns how long ago a worker was noted as missed, which this notes: who waits for it may be lost as well,
// and the next one need not begin anew. It goes by NATS's clock. What can't be noted is missed for no time.
func (l *tenantQueue) missedFor(ctx context.Context, worker string) time.Duration {
	timed, cancel := context.WithTimeout(ctx, l.w.config.Times.Beat)
	defer cancel()
	if _, err := l.missed.Create(timed, worker, nil); !errors.Is(err, jetstream.ErrKeyExists) {
		return 0
	}
	since, err := l.missed.Get(timed, worker)
	now, e := l.workers.Get(timed, l.w.info.ID)
	if err != nil || e != nil {
		return 0
	}
	return now.Created().Sub(since.Created())
}
