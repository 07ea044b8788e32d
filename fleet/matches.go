package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
)

// A queue is that of an architecture, a tenant and a priority, and not of all that a run may need, since each queue
// costs each idle worker an exchange a second. A worker that finds a run which it can never do, and knows one that
// can, gives it back and has that one look: the run is there after milliseconds, and those behind it are not behind
// it.

// lacks reports whether a worker can never do a run, whatever room it has now. A worker that says nothing of what it
// has is taken to have it.
func lacks(w WorkerInfo, req unitask.Request, memoryMB int) bool {
	kernel := len(w.Kernels) > 0 && req.Kernel != "" && !slices.Contains(w.Kernels, string(req.Kernel))
	jail := len(w.Jail) > 0 && slices.ContainsFunc(req.RequireJail,
		func(layer string) bool { return !slices.Contains(w.Jail, layer) })
	return kernel || jail || memoryMB > w.MemoryMB
}

// passOn says how a run is given back for a worker that can do it, where this one can't, once it is no longer in hand
// here; nil is that it is this one's: it can do it, or no other that is there can.
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
	if now < 0 || deliveries(msg)%otherTurn == 0 { // what workers say of their room is old, or wrong
		return func() { l.w.later(msg) } // they look when they have some
	}
	return func() {
		_ = msg.Nak()
		_ = l.nc.Publish(subjectWake+workers[now].ID, nil)
		time.Sleep(lookAgain[len(lookAgain)-1]) // or it would look itself, first
	}
}
