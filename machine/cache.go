package machine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"

	"github.com/unitask/unitask/internal/atomicfile"
)

// Cache remembers answers that are slow to find out: a QEMU's version, which
// accelerator booted, the TSC's frequency. It is a small JSON file. A cache
// that can't be read or written is an empty one: it only saves time.
type Cache struct {
	path string

	mu     sync.Mutex
	values map[string]string
}

// maxCached bounds the file: keys hold digests and boot ids, so old ones pile up.
const maxCached = 256

// OpenCache reads the cache in the file path.
func OpenCache(path string) *Cache {
	c := &Cache{path: path, values: map[string]string{}}
	if text, err := os.ReadFile(path); err == nil && len(text) < 1<<20 {
		if json.Unmarshal(text, &c.values) != nil || c.values == nil {
			c.values = map[string]string{}
		}
	}
	return c
}

// Get returns what was put under key.
func (c *Cache) Get(key string) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.values[key]
	return v, ok
}

// Put remembers value under key; "" forgets it.
func (c *Cache) Put(key, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.values[key]; ok && old == value {
		return
	}
	if len(c.values) >= maxCached {
		c.values = map[string]string{}
	}
	c.values[key] = value
	if value == "" {
		delete(c.values, key)
	}
	text, err := json.MarshalIndent(c.values, "", "  ")
	if err != nil {
		return
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o700); err != nil {
		return
	}
	_ = atomicfile.Write(c.path, append(text, '\n'), 0o600)
}
