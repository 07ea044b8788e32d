// Package compiled keeps compiled programs in a folder of the home, under a key of all their inputs. It knows nothing
// about compilers: it stores bytes under a key, and returns all of them or nothing. A digest seals each entry, so a
// damaged entry counts as missing. No failure here fails a run: a program that can't be kept is compiled again.
package compiled

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/disuse"
	"github.com/unitask/unitask/internal/filelock"
)

const (
	// format is part of each key, so entries of another format are never found.
	format = "unitask compiled 1"
	// DefaultBytes limits the store. A compiled program that prints one line takes 1.5 MiB.
	DefaultBytes = 1 << 30
	// leastRoom is the least that an entry counts for. It limits the store to 4096 entries, because adding one looks at
	// all of them.
	leastRoom = 256 << 10
	// newPrefix begins the names of unfinished entries.
	newPrefix = ".new-"
)

// Store keeps programs in a folder. A zero MaxBytes means DefaultBytes. Any process may call its methods at the same
// time.
type Store struct {
	Dir      string
	MaxBytes int64
}

// Key returns the key of a program from all its inputs.
func Key(of ...string) string {
	h := sha256.New()
	for _, part := range append([]string{format}, of...) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		io.WriteString(h, part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// seal returns the hash that makes an entry's digest. The digest precedes the program.
func seal(key string) hash.Hash {
	h := sha256.New()
	io.WriteString(h, key)
	return h
}

// Get returns the program of a key, or nil if the store does not have it. It removes a damaged entry.
func (s *Store) Get(key string) []byte {
	name := filepath.Join(s.Dir, key)
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	if size := st.Size(); size > sha256.Size && size <= sha256.Size+contract.MaxProgram {
		entry := make([]byte, size)
		_, err = io.ReadFull(f, entry)
		program, sum := entry[sha256.Size:], seal(key)
		sum.Write(program)
		if err == nil && bytes.Equal(sum.Sum(nil), entry[:sha256.Size]) {
			now := time.Now()
			_ = os.Chtimes(name, now, now) // on failure the entry is only removed earlier
			return program
		}
	}
	_ = os.Remove(name)
	return nil
}

// Draft is an unfinished entry. Its file is locked. An unlocked file with such a name was left behind.
type Draft struct {
	store *Store
	key   string
	lock  *filelock.Lock // nil when the draft has ended, or can't be written
	sum   hash.Hash
	kept  bool
}

// New begins an entry. The caller must call Discard at the end.
func (s *Store) New(key string) *Draft {
	d := &Draft{store: s, key: key, sum: seal(key)}
	d.lock, _ = filelock.Try(filepath.Join(s.Dir, newPrefix+rand.Text()))
	d.write(make([]byte, sha256.Size))
	return d
}

func (d *Draft) write(p []byte) {
	if d.lock == nil {
		return
	}
	if _, err := d.lock.File().Write(p); err != nil {
		d.Discard()
	}
}

// Write appends to the program.
func (d *Draft) Write(part []byte) {
	d.write(part)
	d.sum.Write(part)
}

// Keep stores the entry under its key. If another process uses the store, Keep does not wait: the run waits for Keep.
func (d *Draft) Keep() {
	if d.lock == nil {
		return
	}
	defer d.Discard()
	if _, err := d.lock.File().WriteAt(d.sum.Sum(nil), 0); err != nil {
		return
	}
	turn, err := filelock.TryAlone(d.store.Dir)
	if err != nil {
		return
	}
	defer turn.Unlock()
	d.kept = d.store.makeRoom(d.key) == nil && os.Rename(d.lock.File().Name(), filepath.Join(d.store.Dir, d.key)) == nil
}

// Kept reports whether the entry is stored under its key.
func (d *Draft) Kept() bool { return d.kept }

// Discard ends an entry, and removes it if it was not kept. It may be called twice.
func (d *Draft) Discard() {
	if d.lock == nil {
		return
	}
	if !d.kept {
		_ = os.Remove(d.lock.File().Name())
	}
	d.lock.Unlock()
	d.lock = nil
}

func room(st fs.FileInfo) int64 { return max(st.Size(), leastRoom) }

var errNoRoom = errors.New("there is no room")

// makeRoom removes the least recently used entries until the rest fits. Unfinished entries count too; one of them
// replaces an existing entry of the key.
func (s *Store) makeRoom(key string) error {
	kept, taken, err := s.entries()
	if err != nil {
		return err
	}
	most := cmp.Or(s.MaxBytes, DefaultBytes)
	if taken > most {
		return errNoRoom
	}
	kept = slices.DeleteFunc(kept, func(e fs.FileInfo) bool { return e.Name() == key })
	for _, e := range kept {
		taken += room(e)
	}
	for _, e := range kept {
		if taken <= most {
			break
		}
		if err := os.Remove(filepath.Join(s.Dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		taken -= room(e)
	}
	return nil
}

// entries returns the entries, least recently used first, and the size of the unfinished ones. It removes unfinished
// entries that were left behind.
func (s *Store) entries() (kept []fs.FileInfo, writing int64, err error) {
	list, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range list {
		st, err := e.Info()
		name := filepath.Join(s.Dir, e.Name())
		switch {
		case err != nil || !st.Mode().IsRegular(): // it was just removed, or it is not ours
		case !strings.HasPrefix(e.Name(), newPrefix):
			kept = append(kept, st)
		default:
			lock, err := filelock.TryAlone(name)
			if err != nil { // it may be unfinished and in use
				writing += room(st)
				continue
			}
			_ = os.Remove(name)
			lock.Unlock()
		}
	}
	slices.SortFunc(kept, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	return kept, writing, nil
}

// Prune removes the programs that the rule does not spare.
func (s *Store) Prune(rule disuse.Rule) (freed disuse.Freed, err error) {
	turn, err := filelock.Alone(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return freed, nil
	}
	if err != nil {
		return freed, err
	}
	defer turn.Unlock()
	list, _, err := s.entries()
	for _, e := range list {
		if rule.Spares(e.ModTime()) {
			continue
		}
		name := filepath.Join(s.Dir, e.Name())
		size := disuse.Size(name)
		if !rule.DryRun {
			if e := os.Remove(name); e != nil {
				err = errors.Join(err, e)
				continue
			}
		}
		freed.Add(size)
	}
	return freed, err
}
