package unitask

import (
	"io"
	"time"

	"github.com/unitask/unitask/policy"
)

// ReadInputs returns the content of every file that a request would bring into the
// guest, by its path there; between is called after the check, before the reading.
func ReadInputs(req Request, ceiling *policy.Ceiling, between func()) (map[string]string, []policy.Denial, error) {
	var in inputs
	defer in.close()
	_, _, denials, err := req.resolve(ceiling, &in)
	if err != nil {
		return nil, denials, err
	}
	if between != nil {
		between()
	}
	found := map[string]string{}
	for _, e := range in.entries {
		if e.open == nil {
			found[e.Path] = e.Mode.Type().String() + e.Target
			continue
		}
		f, err := e.open()
		if err != nil {
			return found, denials, err
		}
		text, err := io.ReadAll(io.NewSectionReader(f, 0, e.Size))
		if !e.kept {
			f.Close()
		}
		if err != nil {
			return found, denials, err
		}
		found[e.Path] = string(text)
	}
	return found, denials, nil
}

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
