package machine

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/filelock"
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

// cacheLockTime bounds the wait for another process that writes the cache.
const cacheLockTime = time.Second

// OpenCache reads the cache in the file path.
func OpenCache(path string) *Cache {
	c := &Cache{path: path, values: readCache(path)}
	if c.values == nil {
		c.values = map[string]string{}
	}
	return c
}

// readCache returns what the file has, nil if it can't be read.
func readCache(path string) (values map[string]string) {
	text, err := os.ReadFile(path)
	if err != nil || len(text) >= 1<<20 || json.Unmarshal(text, &values) != nil {
		return nil
	}
	return values
}

// Get returns what was put under key.
func (c *Cache) Get(key string) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.values[key]
	return v, ok
}

// Put remembers value under key; "" forgets it. What other processes have put meanwhile stays: the file is read again,
// and a lock is held until it is written, unless another process holds that for long.
func (c *Cache) Put(key, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.values[key]; ok && old == value {
		return
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o700); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cacheLockTime)
	defer cancel()
	if lock, err := filelock.Wait(ctx, c.path+".lock", func() {}); err == nil {
		defer lock.Unlock()
	}
	if now := readCache(c.path); now != nil {
		c.values = now
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
	_ = atomicfile.Write(c.path, append(text, '\n'), 0o600)
}
