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
	// MaxBytes and MaxMany bound all that is kept: what was not used for longest goes, and what is held stays. 0 is no
	// bound.
	MaxBytes int64
	MaxMany  int
	Removed  func(key string) // told of what has gone, if not nil
}

// Bounds of what is kept for runs. Who asks for packages chooses how, and what is asked for in other words is kept by
// itself.
const (
	RunsBytes = 16 << 30 // of the disk
	RunsMany  = 64
)

// diskBlock is what a file takes beyond its bytes, and a folder, at most.
const diskBlock = 4096

// Hold notes that what is kept was used, and keeps it from going to make room until it is let go of. The error wraps
// fs.ErrNotExist where it has gone.
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
	_ = os.Chtimes(l.dir, now, now) // else it only goes earlier
	return held, nil
}

// kept is what makeRoom knows of an entry.
type kept struct {
	key  string
	room int64
	used time.Time
}

// makeRoom removes what was not used for longest, until there is room for one more. What comes is put there before the
// lock is let go of.
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
		one := kept{key: key} // what is damaged goes first
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
			"packages of runs that are under way take the room that there is for packages, %d MiB for %d sets of them: wait until some have ended", s.MaxBytes>>20, s.MaxMany)
	}
	return nil
}

// Unheld returns the size and the last use of what is kept under a key; there is nothing where somebody holds it.
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

// Drop removes what is kept under a key, if nobody holds it, and says whether it has gone.
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
	old, err := atomicfile.SetAside(dir, ".new-") // which goes with what builds leave behind, should this process end now
	if err != nil {
		return false, err
	}
	if s.Removed != nil {
		s.Removed(key)
	}
	return true, os.RemoveAll(old)
}
