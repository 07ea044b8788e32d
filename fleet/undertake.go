package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// candidate returns a run that this worker may claim, or nil if there is none now. watched means that the message is
// still being handled: the run's worker is waited for.
func (l *tenantQueue) candidate(ctx context.Context, d delivery, run string) (c *claim, watched bool) {
	w, msg := l.w, d.msg
	e, revision, err := l.get(ctx, run)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound) && deliveries(msg) < missingDeliveries: // not known yet to the leader
		w.later(msg)
		return nil, false
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, errMalformed):
		w.log.Warn("a message about no run was dropped", "run", run, "tenant", l.tenant, "error", err)
		_ = msg.Term()
		return nil, false
	case err != nil:
		w.later(msg)
		return nil, false
	case e.State.over():
		_ = msg.Ack()
		return nil, false
	}
	c = &claim{w: w, queue: l, store: l.tenantStore, run: run, entry: e, revision: revision, msg: msg}
	if e.State != Claimed || e.Worker == w.info.ID { // its own run is not handled any more: writing its end failed
		return c, false
	}
	lives, err := l.lives(ctx, e.Worker)
	if err == nil && !lives && d.orphan != e.Worker && c.watch(ctx) {
		return nil, true
	}
	if err != nil || lives || d.orphan != e.Worker {
		w.later(msg)
		return nil, false
	}
	return c, false
}

// undertake claims the run if there is room, and only then reads its task. So a task that crashes its reader crashes at
// most maxLosses workers. give passes the run on; call it once this worker no longer handles the run.
func (c *claim) undertake(ctx context.Context) (give func()) {
	w, l, before := c.w, c.queue, c.entry
	if before.State == Claimed {
		if why := exhausted(before); why != "" {
			c.foundLost(ctx, why)
			return nil
		}
		c.entry.Losses++
	}
	if deliveries(c.msg) >= maxDeliver {
		c.lose(ctx, fmt.Sprintf("it was in the hands of workers %d times, and none had room for it", maxDeliver))
		return nil
	}
	room, code := c.hint(), c.codeBytes()
	if !w.reserve(l, room) {
		w.later(c.msg)
		return nil
	}
	defer func() { w.release(l, room) }()
	if !w.memory.try(l.tenant, code) {
		w.later(c.msg)
		return nil
	}
	defer w.memory.give(l.tenant, code) // when the run has ended
	c.entry.State, c.entry.Worker, c.entry.Attempt = Claimed, w.info.ID, before.Attempt+1
	c.entry.Reading = before.State == Claimed
	if err := c.take(ctx); err != nil {
		w.later(c.msg) // another worker was faster
		return nil
	}
	job, malformed := c.read(ctx)
	if malformed != nil && !errors.Is(malformed, errMalformed) && !errors.Is(malformed, jetstream.ErrObjectNotFound) {
		c.back(ctx, before)
		w.later(c.msg)
		return nil
	}
	memoryMB := 1
	if malformed == nil {
		memoryMB = max(1, w.runner.MemoryMB(l.tenant, job.here(l.tenant)))
		if before.State == Queued {
			if give = l.passOn(ctx, c.msg, job.Request, memoryMB); give != nil {
				c.back(ctx, before)
				return give
			}
		}
		if _, most := w.share(); memoryMB > most && memoryMB > l.largest(ctx) {
			malformed = fmt.Errorf("no worker has %d MiB for a machine", memoryMB)
			memoryMB = 1
		}
	}
	if !w.reserveMore(l, memoryMB-room) {
		c.back(ctx, before)
		w.later(c.msg)
		return nil
	}
	room = memoryMB
	if before.State == Claimed && !c.again(ctx, job, before) {
		return nil
	}
	if before.Attempt == 0 {
		w.metrics.claimed(l, c.msg)
	}
	c.work(ctx, job, malformed)
	return nil
}

// hint returns the memory, in MiB, to reserve for the machine before the task is read, according to its entry.
func (c *claim) hint() int {
	if _, most := c.w.share(); c.entry.MemoryMB <= most {
		return max(1, c.entry.MemoryMB)
	}
	return 1
}

// codeBytes returns the worker's memory that the code needs; too large code is never read.
func (c *claim) codeBytes() int64 {
	if b := c.entry.Code; b != nil && b.Size > 0 && b.Size <= maxCode {
		return heldTimes * b.Size
	}
	return 0
}

// readTime bounds the reading of a task without its code.
const readTime = time.Minute

// read reads the claimed task without its code.
func (c *claim) read(ctx context.Context) (task, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	job, err := readTask(ctx, c.store, c.entry.Task)
	if err == nil {
		err = c.w.matches(job.Request)
	}
	return job, err
}

// back restores the run's earlier entry: the run has not begun.
func (c *claim) back(ctx context.Context, before entry) {
	err := c.w.config.Times.patiently(ctx, func(ctx context.Context) error {
		_, err := c.store.replace(ctx, c.run, before, c.revision)
		return err
	})
	if err != nil {
		c.settle(ctx)
	}
}

// again reports whether the run of a lost worker is repeated. If not, it ends the run as lost.
func (c *claim) again(ctx context.Context, job task, before entry) bool {
	w, tenant := c.w, c.queue.tenant
	if why := again(job.Request, before); why != "" {
		c.foundLost(ctx, why)
		return false
	}
	c.entry.Reading = false
	if err := c.take(ctx); err != nil {
		c.settle(ctx)
		return false
	}
	w.count(func(i *WorkerInfo) { i.Retried++ })
	w.metrics.retried.WithLabelValues(w.info.Arch, tenant).Inc()
	w.log.Warn("its worker is lost; it is made again",
		"run", c.run, "tenant", tenant, "worker", before.Worker, "attempt", c.entry.Attempt)
	return true
}

// foundLost ends a run that this worker has found to be lost.
func (c *claim) foundLost(ctx context.Context, why string) {
	c.w.count(func(i *WorkerInfo) { i.Lost++ })
	c.w.metrics.lost.WithLabelValues(c.w.info.Arch, c.queue.tenant).Inc()
	c.lose(ctx, why)
}
