package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/filelock"
)

// The records of each owner are found without reading those of others: an empty file for each record lies in a folder
// of its owner, of how it was requested, and of its hour. It is made before the record and removed after it, so that a
// process which is killed in between leaves a file without a record, and no record without one. Who lists records reads
// them, and skips what is not there: the records are the truth.

// Names in the store's folder.
const (
	ownersDir   = ".owners"
	indexedFile = ".complete" // says that records of before there was an index are in it
	indexLock   = ".lock"
)

// beingMade is how long a record may take to be made once its file is there.
const beingMade = time.Minute

// ownerFolder is where an owner's files are.
func (s *Store) ownerFolder(owner string, via Via) string {
	name := sha256.Sum256([]byte(string(via) + "\x00" + owner))
	return filepath.Join(s.dir, ownersDir, hex.EncodeToString(name[:]))
}

// hourOf is the part of an id that its hour's folder is named by: ids sort as their hours do. A listing that needs few
// records looks into few folders.
func hourOf(id string) string { return id[:min(len(id), len("20060102-15"))] }

func (s *Store) mark(owner string, via Via, id string) error {
	hour := filepath.Join(s.ownerFolder(owner, via), hourOf(id))
	for tries := 0; ; tries++ {
		if err := os.MkdirAll(hour, 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(filepath.Join(hour, id), os.O_WRONLY|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrNotExist) && tries < 100 { // a removal took the hour, which was empty
			continue
		}
		if err != nil {
			return err
		}
		return f.Close()
	}
}

func (s *Store) unmark(owner string, via Via, id string) {
	hour := filepath.Join(s.ownerFolder(owner, via), hourOf(id))
	_ = os.Remove(filepath.Join(hour, id))
	_ = os.Remove(hour) // if it is empty
}

// Gone says that an owner's record, which was listed, is not there. One that is being made still is listed.
func (s *Store) Gone(owner string, vias []Via, id string) {
	for _, via := range vias {
		st, err := os.Lstat(filepath.Join(s.ownerFolder(owner, via), hourOf(id), id))
		if err == nil && time.Since(st.ModTime()) > beingMade {
			s.unmark(owner, via, id)
		}
	}
}

// index indexes the records of an older unitask, once.
func (s *Store) index() error {
	dir := filepath.Join(s.dir, ownersDir)
	complete := filepath.Join(dir, indexedFile)
	if _, err := os.Lstat(complete); err == nil {
		return nil
	}
	if _, err := os.Lstat(s.dir); errors.Is(err, fs.ErrNotExist) {
		return nil // with the first run
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := filelock.Take(filepath.Join(dir, indexLock))
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if _, err := os.Lstat(complete); err == nil { // meanwhile
		return nil
	}
	ids, err := s.IDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		rec, ok := s.brief(id)
		if !ok {
			continue // one that can't be read is nobody's
		}
		if err := s.mark(rec.Owner, rec.Via, id); err != nil {
			return err
		}
		if _, err := os.Lstat(s.Path(id, recordFile)); errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			s.unmark(rec.Owner, rec.Via, id)
		}
	}
	return os.WriteFile(complete, nil, 0o600)
}

// brief is what is known of a record at a glance.
type brief struct {
	Owner  string
	Via    Via
	Status Status
}

// brief reads it; ok is false where it can't be read.
func (s *Store) brief(id string) (rec brief, ok bool) {
	text, err := os.ReadFile(s.Path(id, recordFile))
	return rec, err == nil && json.Unmarshal(text, &rec) == nil
}

// Own are the ids of an owner's records that were requested in these ways, the newest first: those before an id, if
// there is one, that begin with a prefix. A record may be gone, or not be made yet.
func (s *Store) Own(owner string, vias []Via, before, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := s.index(); err != nil {
			yield("", fmt.Errorf("index the records: %w", err))
			return
		}
		var folders []string
		for _, via := range vias {
			folders = append(folders, s.ownerFolder(owner, via))
		}
		hours, err := namesIn(folders, func(hour string) bool {
			return strings.HasPrefix(hour, hourOf(prefix)) && (before == "" || hour <= hourOf(before))
		})
		if err != nil {
			yield("", err)
			return
		}
		for _, hour := range slices.Compact(hours) {
			var of []string
			for _, folder := range folders {
				of = append(of, filepath.Join(folder, hour))
			}
			ids, err := namesIn(of, func(id string) bool {
				return strings.HasPrefix(id, prefix) && (before == "" || id < before)
			})
			if err != nil {
				yield("", err)
				return
			}
			for _, id := range ids {
				if !yield(id, nil) {
					return
				}
			}
		}
	}
}

// namesIn are the names in folders that are wanted, the last first.
func namesIn(folders []string, wanted func(string) bool) (names []string, err error) {
	for _, folder := range folders {
		f, err := os.Open(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found, err := f.Readdirnames(-1)
		f.Close()
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			if wanted(name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	slices.Reverse(names)
	return names, nil
}
