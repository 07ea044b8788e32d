package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
)

// Queues are separate by architecture, tenant and priority only, not by all needs of a run. Each queue costs each idle
// worker an exchange a second. If a worker can never do a run, and knows a worker that can, it gives the run back and
// wakes that worker. The run moves on within milliseconds, and does not delay later runs.

// lacks reports whether a worker can never do a run, whatever its free room. Features missing from its info count as
// present.
func lacks(w WorkerInfo, req unitask.Request, memoryMB int) bool {
	kernel := len(w.Kernels) > 0 && req.Kernel != "" && !slices.Contains(w.Kernels, string(req.Kernel))
	jail := len(w.Jail) > 0 && slices.ContainsFunc(req.RequireJail,
		func(layer string) bool { return !slices.Contains(w.Jail, layer) })
	return kernel || jail || memoryMB > w.MemoryMB
}

// passOn returns a function that gives the run back for a worker that can do it. Call it once this worker no longer
// handles the run. nil means that this worker keeps the run: it can do it, or no other present worker can.
func (l *tenantQueue) passOn(ctx context.Context, msg jetstream.Msg, req unitask.Request, memoryMB int) (give func()) {
	self := l.w.told(l)
	if !lacks(self, req, memoryMB) {
		return nil
	}
	workers, err := l.others(ctx)
	workers = slices.DeleteFunc(workers, func(w WorkerInfo) bool {
		return w.ID == self.ID || w.Draining || w.Arch != self.Arch || lacks(w, req, memoryMB)
	})
	if err != nil || len(workers) == 0 {
		return nil
	}
	now := slices.IndexFunc(workers, func(w WorkerInfo) bool {
		return w.Running < w.Slots && w.UsedMB+
			memoryMB <= w.MemoryMB
	})
	if now < 0 || deliveries(msg)%otherTurn == 0 { // the workers' info about free room is old or wrong
		return func() { l.w.later(msg) } // they check the queue when they have room
	}
	return func() {
		_ = msg.Nak()
		_ = l.nc.Publish(subjectWake+workers[now].ID, nil)
		time.Sleep(lookAgain[len(lookAgain)-1]) // or this worker would find it first
	}
}
