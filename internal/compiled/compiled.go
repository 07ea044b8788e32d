// Package compiled keeps compiled programs in a folder of the home, under a key of all their inputs. It knows nothing
// about compilers: it stores bytes for a key, and returns them completely or not at all. A digest seals each entry, so
// a damaged one counts as missing. Nothing here fails a run: a program that can't be kept is compiled again.
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
	// format is part of each key: of another format nothing is found.
	format = "unitask compiled 1"
	// DefaultBytes bounds what is kept of programs, of which one that prints a line has 1.5 MiB.
	DefaultBytes = 1 << 30
	// leastRoom is what an entry counts as at least: so there are 4096 of them at most, which are looked at when one
	// is added.
	leastRoom = 256 << 10
	// newPrefix begins the names of what is being written.
	newPrefix = ".new-"
)

// Store keeps programs in a folder; the zero MaxBytes is DefaultBytes. Its methods may be called at the same time, by
// any process.
type Store struct {
	Dir      string
	MaxBytes int64
}

// Key is that of a program: of all that it is made from.
func Key(of ...string) string {
	h := sha256.New()
	for _, part := range append([]string{format}, of...) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		io.WriteString(h, part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// seal returns what makes the digest of an entry, which stands before the program.
func seal(key string) hash.Hash {
	h := sha256.New()
	io.WriteString(h, key)
	return h
}

// Get returns the program of a key, nil if it is not there. One that was damaged is removed.
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
			_ = os.Chtimes(name, now, now) // else it only goes earlier
			return program
		}
	}
	_ = os.Remove(name)
	return nil
}

// Draft is an entry that is being written. Its file is locked: what has the name of one and is not was left behind.
type Draft struct {
	store *Store
	key   string
	lock  *filelock.Lock // nil when it is over, or can't be written
	sum   hash.Hash
	kept  bool
}

// New begins an entry. The caller discards it when it is over.
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

// Write takes the next part of the program.
func (d *Draft) Write(part []byte) {
	d.write(part)
	d.sum.Write(part)
}

// Keep puts what was written under its key, unless somebody else is at the store: the run waits for this.
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

// Kept reports whether it is under its key.
func (d *Draft) Kept() bool { return d.kept }

// Discard ends an entry that is not kept. It may be called twice.
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

// makeRoom removes what was not used for longest, until all that is left has its room: what is being written, too, of
// which one takes the place of the key's.
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

// entries returns those that there are, what was not used for longest first, and how much what is being written takes.
// What was left behind goes.
func (s *Store) entries() (kept []fs.FileInfo, writing int64, err error) {
	list, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range list {
		st, err := e.Info()
		name := filepath.Join(s.Dir, e.Name())
		switch {
		case err != nil || !st.Mode().IsRegular(): // it has just gone, or nobody here made it
		case !strings.HasPrefix(e.Name(), newPrefix):
			kept = append(kept, st)
		default:
			lock, err := filelock.TryAlone(name)
			if err != nil { // it is being written, as far as one knows
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
