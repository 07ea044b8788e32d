package packages

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/disuse"
	"github.com/unitask/unitask/internal/filelock"
)

// Store keeps built packages in a folder of the home.
type Store struct {
	Dir string
	// MaxBytes and MaxMany bound the store: the least recently used sets are removed first, and held ones stay. 0 means no
	// bound.
	MaxBytes int64
	MaxMany  int
	Removed  func(key string) // receives the key of each removed set, if not nil
}

// Bounds of the sets for runs. Callers choose how to name packages, and each way of naming them gets a separate set.
const (
	RunsBytes = 16 << 30 // of the disk
	RunsMany  = 64
)

// diskBlock bounds what a file takes beyond its bytes, and what a folder takes.
const diskBlock = 4096

// Hold notes a set's use, and keeps it from being removed until the lock is released. The error wraps fs.ErrNotExist if
// the set was removed.
func (s *Store) Hold(l *Lock) (*filelock.Lock, error) {
	held, err := filelock.Share(l.dir)
	if err != nil {
		return nil, err
	}
	is, err := held.File().Stat()
	there, e := os.Stat(l.dir)
	if err = errors.Join(err, e); err == nil && !os.SameFile(is, there) {
		err = fmt.Errorf("%s: %w", l.dir, fs.ErrNotExist)
	}
	if err != nil {
		held.Unlock()
		return nil, err
	}
	now := time.Now()
	_ = os.Chtimes(l.dir, now, now) // without it, the set is only removed earlier
	return held, nil
}

// kept describes an entry for makeRoom.
type kept struct {
	key  string
	room int64
	used time.Time
}

// makeRoom removes the least recently used sets until one more fits. The caller adds the new set before it releases the
// lock.
func (s *Store) makeRoom(l *Lock) (*filelock.Lock, error) {
	if s.MaxBytes == 0 && s.MaxMany == 0 {
		return nil, nil
	}
	turn, err := filelock.Alone(s.Dir)
	if err != nil {
		return nil, err
	}
	if err := s.room(l); err != nil {
		turn.Unlock()
		return nil, err
	}
	return turn, nil
}

func (s *Store) room(l *Lock) error {
	keys, err := s.Keys()
	if err != nil {
		return err
	}
	list, room := []kept{}, l.Room
	for _, key := range keys {
		st, err := os.Stat(filepath.Join(s.Dir, key))
		if key == l.Key || err != nil {
			continue
		}
		one := kept{key: key} // damaged sets are removed first
		if have, err := s.Get(key); err == nil {
			one.room, one.used = max(have.Room, have.Bytes), st.ModTime()
		}
		list, room = append(list, one), room+one.room
	}
	slices.SortFunc(list, func(a, b kept) int { return a.used.Compare(b.used) })
	many := len(list) + 1
	over := func() bool { return s.MaxBytes > 0 && room > s.MaxBytes || s.MaxMany > 0 && many > s.MaxMany }
	for _, one := range list {
		if !over() {
			break
		}
		gone, err := s.Drop(one.key)
		if err != nil {
			return err
		}
		if gone {
			room -= one.room
			many--
		}
	}
	if over() {
		return fmt.Errorf(
			"packages of runs that are under way take the room that there is for packages, %d MiB for %d sets of them: "+
				"wait until some have ended", s.MaxBytes>>20, s.MaxMany)
	}
	return nil
}

// Unheld returns the size and the last use of the set with a key, unless somebody holds it.
func (s *Store) Unheld(key string) (bytes int64, used time.Time, is bool) {
	dir := filepath.Join(s.Dir, key)
	held, err := filelock.TryAlone(dir)
	if err != nil {
		return 0, used, false
	}
	defer held.Unlock()
	if st, err := os.Stat(dir); err == nil {
		used = st.ModTime()
	}
	return disuse.Size(dir), used, true
}

// Drop removes the set with a key, if nobody holds it, and reports whether it was removed.
func (s *Store) Drop(key string) (bool, error) {
	dir := filepath.Join(s.Dir, key)
	held, err := filelock.TryAlone(dir)
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return false, nil
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	}
	defer held.Unlock()
	// if this process ends now, the next cleanup of builds' leftovers removes it
	old, err := atomicfile.SetAside(dir, ".new-")
	if err != nil {
		return false, err
	}
	if s.Removed != nil {
		s.Removed(key)
	}
	return true, os.RemoveAll(old)
}
