package fleet

import (
	"context"
	"os"
	"runtime/debug"
	"sync"
)

// Limits of tenants' data in the memory of a worker's process, over all runs and sessions. Machines have separate
// memory (WorkerInfo.MemoryMB).
const (
	maxHeld       = 256 << 20 // bytes
	maxHeldTenant = 136 << 20 // of one tenant: the largest code twice, and some calls
	maxFirst      = 2 << 20   // reserved for each tenant: its small calls wait for nobody
	heldTimes     = 2         // content is in memory as received, and as sent to a machine
	decodedTimes  = 8         // JSON of at most maxValues is that much larger once it is decoded
)

// Memory limit of a worker's process: maxHeld, the process itself, and a decoded task for each slot.
const (
	workerBytes = 384 << 20
	slotBytes   = 4 << 20
)

// LimitMemory sets this process's memory limit for a worker with the given slots, and returns the limit in bytes. A
// limit in GOMEMLIMIT stays. The worker's own budget keeps the tenants' data below the limit.
func LimitMemory(slots int) int64 {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(workerBytes + int64(slots)*slotBytes)
	}
	return debug.SetMemoryLimit(-1)
}

// budget limits the bytes of tenants' data in memory at once: of all tenants, and of each.
type budget struct {
	tenants int   // that there may be
	first   int64 // kept for each of them

	mu      sync.Mutex
	free    int64
	taken   map[string]int64 // by tenant
	changed chan struct{}    // closed when some was given back
}

// newBudget returns the budget for a number of tenants. The reserves leave room for one tenant's maximum.
func newBudget(tenants int) *budget {
	first := min(maxFirst, (maxHeld-maxHeldTenant)/int64(max(tenants, 1)))
	return &budget{tenants: tenants, first: first, free: maxHeld, taken: map[string]int64{}, changed: make(chan struct{})}
}

// try reserves n bytes if they are free. A caller with a reservation gives it back before it waits for more.
func (b *budget) try(tenant string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tryLocked(tenant, n)
}

func (b *budget) tryLocked(tenant string, n int64) bool {
	kept := b.first * int64(max(b.tenants-1, 0)) // for the others
	for other, held := range b.taken {
		if other != tenant {
			kept -= min(held, b.first)
		}
	}
	if n > b.free-max(kept, 0) || b.taken[tenant]+n > maxHeldTenant {
		return false
	}
	b.free -= n
	b.taken[tenant] += n
	return true
}

// take waits until n bytes are free, and reserves them.
func (b *budget) take(ctx context.Context, tenant string, n int64) error {
	for {
		b.mu.Lock()
		ok, changed := b.tryLocked(tenant, n), b.changed
		b.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (b *budget) give(tenant string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	if b.taken[tenant] -= n; b.taken[tenant] == 0 {
		delete(b.taken, tenant)
	}
	close(b.changed)
	b.changed = make(chan struct{})
}
