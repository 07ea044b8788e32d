package vmm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Memo remembers answers that are slow to find out: a QEMU's version, which
// accelerator booted, the TSC's frequency. It is a small JSON file. A memo that
// can't be read or written is an empty one: it only saves time.
type Memo struct {
	path string

	mu     sync.Mutex
	values map[string]string
}

// maxMemo bounds the file: keys hold digests and boot ids, so old ones pile up.
const maxMemo = 256

// OpenMemo reads the memo in the file path. A nil *Memo remembers nothing.
func OpenMemo(path string) *Memo {
	m := &Memo{path: path, values: map[string]string{}}
	if text, err := os.ReadFile(path); err == nil && len(text) < 1<<20 {
		if json.Unmarshal(text, &m.values) != nil || m.values == nil {
			m.values = map[string]string{}
		}
	}
	return m
}

// Get returns what was put under key.
func (m *Memo) Get(key string) (string, bool) {
	if m == nil {
		return "", false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[key]
	return v, ok
}

// Put remembers value under key; "" forgets it.
func (m *Memo) Put(key, value string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.values[key]; ok && old == value {
		return
	}
	if len(m.values) >= maxMemo {
		m.values = map[string]string{}
	}
	m.values[key] = value
	if value == "" {
		delete(m.values, key)
	}
	text, err := json.MarshalIndent(m.values, "", "  ")
	if err != nil {
		return
	}
	if err := os.MkdirAll(filepath.Dir(m.path), 0o700); err != nil {
		return
	}
	tmp := fmt.Sprintf("%s.%d", m.path, os.Getpid())
	if os.WriteFile(tmp, append(text, '\n'), 0o600) != nil || os.Rename(tmp, m.path) != nil {
		_ = os.Remove(tmp)
	}
}
