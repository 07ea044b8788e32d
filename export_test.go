package unitask

import "time"

// What only tests may do to a runtime's pool.

// ShortOfMemory has the pool see no free memory until restore is called.
func ShortOfMemory(rt *Runtime) (restore func()) {
	set := func(f func() (int64, int64)) {
		rt.pool.mu.Lock()
		defer rt.pool.mu.Unlock()
		rt.pool.memory = f
	}
	set(func() (int64, int64) { return 1 << 30, 1 << 20 })
	return func() { set(memory) }
}

// LastRun sets when the pool saw its last run.
func LastRun(rt *Runtime, at time.Time) {
	rt.pool.mu.Lock()
	defer rt.pool.mu.Unlock()
	rt.pool.last = at
}
