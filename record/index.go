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

// The index finds an owner's records without reading those of others. It has an empty file for each record, in a folder
// by owner, kind of request and hour. The file is made before the record and removed after it. If a process is killed
// in between, there is a file without a record, but never a record without a file. A listing reads the records, and
// skips missing ones: the records are authoritative.

// Names in the store's folder.
const (
	ownersDir   = ".owners"
	indexedFile = ".complete" // records from before there was an index are included
	indexLock   = ".lock"
)

// beingMade is how long after its index file a record may appear.
const beingMade = time.Minute

// ownerFolder returns the folder of an owner's index files.
func (s *Store) ownerFolder(owner string, via Via) string {
	name := sha256.Sum256([]byte(string(via) + "\x00" + owner))
	return filepath.Join(s.dir, ownersDir, hex.EncodeToString(name[:]))
}

// hourOf returns the part of an id that names its hour's folder: ids sort as their hours do. A listing of few records
// looks into few folders.
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

// Gone reports whether an owner's listed record does not exist. A record that is just being made does not count as
// gone.
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
		return nil // the first run creates it
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
			continue // an unreadable record has no owner
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

// brief is a record's summary.
type brief struct {
	Owner  string
	Via    Via
	Status Status
}

// brief reads a record's summary; ok is false if it can't.
func (s *Store) brief(id string) (rec brief, ok bool) {
	text, err := os.ReadFile(s.Path(id, recordFile))
	return rec, err == nil && json.Unmarshal(text, &rec) == nil
}

// Own returns the ids of an owner's records that were requested in these ways, the newest first. It begins before
// an id, if one is given, and returns only ids with the prefix. A record may be removed, or not exist yet.
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

// namesIn returns the wanted names in folders, the last first.
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
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the folder may be removed while it is read
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
