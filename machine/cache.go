package machine

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/filelock"
)

// Cache stores values that are slow to compute: a QEMU's version, which accelerator booted, the TSC's frequency. It is
// a small JSON file. An unreadable or unwritable cache counts as empty: it only saves time.
type Cache struct {
	path string

	mu     sync.Mutex
	values map[string]string
	put    map[string]string // set by this process; "" deletes a key
	alone  bool              // the file is not written any more: another process held its lock for too long
}

// maxCached bounds the file: keys hold digests and boot ids, so old ones pile up.
const maxCached = 256

// cacheLockTime bounds the wait for another process that writes the cache.
const cacheLockTime = time.Second

// OpenCache reads the cache in the file path.
func OpenCache(path string) *Cache {
	return &Cache{path: path, values: readCache(path), put: map[string]string{}}
}

// readCache returns the file's values, or none if it can't be read.
func readCache(path string) map[string]string {
	values := map[string]string{}
	text, err := os.ReadFile(path)
	if err != nil || len(text) >= 1<<20 || json.Unmarshal(text, &values) != nil || values == nil {
		return map[string]string{}
	}
	return values
}

// Get returns the value of a key.
func (c *Cache) Get(key string) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.values[key]
	return v, ok
}

// Put stores a value; "" deletes the key. Values that other processes stored meanwhile stay in the file.
func (c *Cache) Put(key, value string) {
	c.mu.Lock()
	if len(c.put) >= maxCached {
		c.put = map[string]string{}
	}
	c.put[key] = value
	c.merge(c.values)
	alone := c.alone
	c.mu.Unlock()
	if alone || makeInHome(filepath.Dir(c.path)) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cacheLockTime)
	defer cancel()
	lock, err := filelock.Wait(ctx, c.path+".lock", func() {})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.alone = ctx.Err() != nil
		return
	}
	defer lock.Unlock()
	c.merge(readCache(c.path))
	text, err := json.MarshalIndent(c.values, "", "  ")
	if err != nil {
		return
	}
	_ = atomicfile.Write(c.path, append(text, '\n'), 0o600)
}

// merge replaces the cache with values, updated with this process's own changes. The caller holds mu.
func (c *Cache) merge(values map[string]string) {
	if len(values) >= maxCached {
		values = map[string]string{}
	}
	maps.Copy(values, c.put)
	maps.DeleteFunc(values, func(_, value string) bool { return value == "" })
	c.values = values
}
