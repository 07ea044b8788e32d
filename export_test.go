package unitask

import "time"

// What only tests may do to a runtime's pool.

// ShortOfMemory has the pool see no free memory until restore is called.
func ShortOfMemory(rt *Runtime) (restore func()) {
	set := func(f func() int64) {
		rt.pool.mu.Lock()
		defer rt.pool.mu.Unlock()
		rt.pool.free = f
	}
	set(func() int64 { return 0 })
	return func() { set(freeMemory) }
}

// LastRun sets when the pool saw its last run.
func LastRun(rt *Runtime, at time.Time) {
	rt.pool.mu.Lock()
	defer rt.pool.mu.Unlock()
	rt.pool.last = at
}
