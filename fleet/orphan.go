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
	orphan string // its run's worker, if silent for a lease; the run is already noted as being handled
}

// maxWatched bounds the runs of a tenant whose workers are waited for at once: further ones are redelivered later.
const maxWatched = 256

// watch waits for a heartbeat of the worker that has claimed a run, without occupying a slot. The message is
// redelivered when that worker was silent for a lease. This also happens to all workers when NATS itself was
// unavailable, so the worker gets a second lease. If it stays silent, the message is the next one of the tenant's
// queue. False means that too many workers are being waited for.
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

// orphaned passes the message on if the run's worker stays silent.
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
			c.w.woken() // once, so that many of these can't keep the worker from sleeping
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

// missedFor notes a worker as missed, and returns how long ago it was first noted, by NATS's clock. The waiting worker
// may be lost as well; then the next one continues the wait. If the note fails, missedFor returns 0.
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
