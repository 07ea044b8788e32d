// Package compiled keeps programs that code was compiled to, in a folder of the home, under a key of all that goes
// into them. It knows nothing of who compiles: what it is given is of its key, and it gives that back whole or not at all. An entry is
// sealed by a digest, so one that was damaged is as one that is not there. Nothing here fails a run: what can't be kept
// is compiled again.
package compiled

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/filelock"
)

const (
	// format is part of each key: of another format nothing is found.
	format = "unitask compiled 1"
	// DefaultBytes bounds what is kept of programs, of which one that prints a line has 1.5 MiB.
	DefaultBytes = 1 << 30
	// leastRoom is what an entry counts as at least: so there are 4096 of them at most, which are looked at when one is added.
	leastRoom = 256 << 10
	// newPrefix begins the names of what is being written. What is older than abandoned nobody writes any more.
	newPrefix = ".new-"
	abandoned = time.Hour
)

// Store keeps programs in a folder; the zero MaxBytes is DefaultBytes. Its methods may be called at the same time, by any process.
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

// seal is the digest of an entry, which stands before the program.
func seal(key string, program []byte) []byte {
	h := sealing(key)
	h.Write(program)
	return h.Sum(nil)
}

func sealing(key string) interface {
	io.Writer
	Sum([]byte) []byte
} {
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
		if program := entry[sha256.Size:]; err == nil && string(seal(key, program)) == string(entry[:sha256.Size]) {
			now := time.Now()
			_ = os.Chtimes(name, now, now) // else it only goes earlier
			return program
		}
	}
	_ = os.Remove(name)
	return nil
}

// Draft is an entry that is being written.
type Draft struct {
	store *Store
	key   string
	file  *os.File // nil when it is kept, or can't be
	sum   interface {
		io.Writer
		Sum([]byte) []byte
	}
	kept bool
}

// New begins an entry. The caller discards it when it is over.
func (s *Store) New(key string) *Draft {
	d := &Draft{store: s, key: key, sum: sealing(key)}
	if os.MkdirAll(s.Dir, 0o700) != nil {
		return d
	}
	d.file, _ = os.CreateTemp(s.Dir, newPrefix) // 0600
	d.write(make([]byte, sha256.Size))
	return d
}

func (d *Draft) write(p []byte) {
	if d.file == nil {
		return
	}
	if _, err := d.file.Write(p); err != nil {
		d.Discard()
	}
}

// Write takes the next part of the program.
func (d *Draft) Write(part []byte) {
	d.write(part)
	_, _ = d.sum.Write(part)
}

// Keep puts what was written under its key.
func (d *Draft) Keep() {
	if d.file == nil {
		return
	}
	defer d.Discard()
	if _, err := d.file.WriteAt(d.sum.Sum(nil), 0); err != nil {
		return
	}
	st, err := d.file.Stat()
	if err != nil {
		return
	}
	turn, err := filelock.TryAlone(d.store.Dir) // the run waits for this
	if err != nil {
		return
	}
	defer turn.Unlock()
	if d.store.makeRoom(d.key, room(st)) == nil && os.Rename(d.file.Name(), filepath.Join(d.store.Dir, d.key)) == nil {
		d.kept = true
	}
}

// Kept says that it is under its key.
func (d *Draft) Kept() bool { return d.kept }

// Discard ends an entry that is not kept. It may be called twice.
func (d *Draft) Discard() {
	if d.file == nil {
		return
	}
	d.file.Close()
	if !d.kept {
		_ = os.Remove(d.file.Name())
	}
	d.file = nil
}

func room(st fs.FileInfo) int64 { return max(st.Size(), leastRoom) }

// makeRoom removes what was not used for longest, until there is room for one of that size, and what was abandoned.
func (s *Store) makeRoom(key string, size int64) error {
	list, err := s.entries()
	if err != nil {
		return err
	}
	most := s.MaxBytes
	if most == 0 {
		most = DefaultBytes
	}
	if size > most {
		return errNoRoom
	}
	for _, e := range list {
		if e.Name() != key {
			size += room(e)
		}
	}
	for _, e := range list {
		if size <= most {
			return nil
		}
		if e.Name() == key {
			continue
		}
		if err := os.Remove(filepath.Join(s.Dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		size -= room(e)
	}
	if size > most {
		return errNoRoom
	}
	return nil
}

var errNoRoom = errors.New("is more than there is room for")

// entries are those that there are, what was not used for longest first. What was abandoned goes.
func (s *Store) entries() ([]fs.FileInfo, error) {
	names, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, err
	}
	var list []fs.FileInfo
	for _, e := range names {
		st, err := e.Info()
		switch {
		case err != nil: // it has just gone
		case !st.Mode().IsRegular(): // nobody here made it
		case !strings.HasPrefix(e.Name(), newPrefix):
			list = append(list, st)
		case time.Since(st.ModTime()).Abs() > abandoned:
			_ = os.Remove(filepath.Join(s.Dir, e.Name()))
		}
	}
	slices.SortFunc(list, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	return list, nil
}

// Prune removes all programs and says how many there were.
func (s *Store) Prune() (removed int, err error) {
	turn, err := filelock.Alone(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer turn.Unlock()
	list, err := s.entries()
	for _, e := range list {
		if e := os.Remove(filepath.Join(s.Dir, e.Name())); e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed++
	}
	return removed, err
}
