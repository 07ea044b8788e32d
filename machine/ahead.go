package machine

import (
	"crypto/sha256"
	"encoding/hex"
)

// Ahead is the template with folders that a run will probably be cloned from. Which one it is
// the files of the folders decide, and looking at tens of thousands takes as long as reading
// the template's memory: the two can go on beside each other.
type Ahead struct {
	source   *Source
	name     string // in the cache, where the key is of the template that this led to
	key      string
	snapshot *Snapshot // nil: it was taken, or there is none
}

// Ahead begins to load the template that runs which name their folders like this one were last
// cloned from. Close it.
func (s *Source) Ahead(folders string) *Ahead {
	sum := sha256.Sum256([]byte(folders))
	a := &Ahead{source: s, name: "template of folders " + hex.EncodeToString(sum[:16])}
	if key, ok := s.cache.Get(a.name); ok {
		if snapshot, err := s.templates.Load(key); err == nil {
			a.key, a.snapshot = key, snapshot
		}
	}
	return a
}

// take returns the template of a key, which the caller closes; nil if it is not this one.
func (a *Ahead) take(key string) *Snapshot {
	if a == nil || a.snapshot == nil || a.key != key {
		return nil
	}
	t := a.snapshot
	a.snapshot = nil
	return t
}

// led notes the key of the template that the run was cloned from.
func (a *Ahead) led(key string) {
	if a != nil {
		a.source.cache.Put(a.name, key)
	}
}

// Close frees what was not taken. It does not wait until that is loaded.
func (a *Ahead) Close() {
	if a != nil && a.snapshot != nil {
		go a.snapshot.Close()
	}
}
