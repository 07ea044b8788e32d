package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/unitask/unitask/internal/filelock"
)

// DefaultStoreBytes is the default limit of a store: 160 runs with the maximum of artifacts, or some 250 000 runs that
// print a few lines.
const DefaultStoreBytes = 10 << 30

// roomFor is the fraction of the limit that a cleanup frees: the next runs then need not measure the whole store
// again.
const roomFor = 8

// sizeFile holds the bytes of the store at the last measurement, plus the runs that ended since, as a decimal
// number. It ignores later removals, so the next measurement may come too early but never too late.
const sizeFile = ".size"

// Freed counts what was removed to keep a store within its limit.
type Freed struct {
	Bytes     int64
	Artifacts int // runs that lost their artifacts
	Runs      int // runs that were removed completely
}

func (f Freed) String() string {
	return fmt.Sprintf(
		"the store of runs was full: removed the artifacts of %d runs and %d whole runs, "+
			"the oldest of whoever had the most, %d MiB", f.Artifacts, f.Runs, f.Bytes>>20)
}

// Bound counts a run that has ended. If the store is then larger than the parameter most, Bound removes the oldest data
// of the owner who uses the most. It removes artifacts first, then whole runs. So no owner loses runs to one who uses
// more. The ended run and current runs stay, even above the limit.
func (s *Store) Bound(ended string, most int64) (Freed, error) {
	freed, err := s.bound(ended, most)
	if err != nil {
		err = fmt.Errorf("bound the store of runs: %w", err)
	}
	return freed, err
}

func (s *Store) bound(ended string, most int64) (freed Freed, err error) {
	lock, err := filelock.Take(filepath.Join(s.dir, sizeFile))
	if err != nil {
		return freed, err
	}
	defer lock.Unlock()
	f := lock.File()
	text := make([]byte, 32)
	n, _ := f.ReadAt(text, 0)
	total, bad := strconv.ParseInt(strings.TrimSpace(string(text[:n])), 10, 64)
	if total < 0 {
		bad = errors.New("negative")
	}
	if bad == nil {
		total += folderSize(filepath.Join(s.dir, ended))
	}
	if bad != nil || total > most {
		if freed, total, err = s.sweep(ended, most); err != nil {
			return freed, err
		}
	}
	if err := f.Truncate(0); err != nil {
		return freed, err
	}
	_, err = f.WriteAt(strconv.AppendInt(nil, total, 10), 0)
	return freed, err
}

// kept is a run in the store.
type kept struct {
	id, owner string
	artifacts int64
	bytes     int64 // artifacts among them
	stays     bool  // in progress, or just ended
	gone      bool
}

// sweep measures the whole store, and frees it down to its limit and some more.
func (s *Store) sweep(ended string, most int64) (freed Freed, total int64, err error) {
	s.removeRest()
	ids, err := s.IDs()
	if err != nil {
		return freed, 0, err
	}
	var runs []*kept // oldest first
	owners := map[string]int64{}
	for _, id := range ids {
		r := &kept{id: id, artifacts: folderSize(s.Path(id, ArtifactsDir)), bytes: folderSize(filepath.Join(s.dir, id))}
		r.owner, r.stays = s.owner(id)
		held := s.held(id)
		r.stays = r.stays || id == ended || held
		if !held { // its process was killed
			_ = os.Remove(s.Path(id, reserveFile))
		}
		runs = append(runs, r)
		owners[r.owner] += r.bytes
		total += r.bytes
	}
	if total <= most {
		return freed, total, nil
	}
	goal, whole := most-most/roomFor, false // whole runs are removed if artifacts are not enough
	for total > goal {
		r := next(runs, owners)
		if r == nil || r.artifacts == 0 && !whole && total <= most {
			break
		}
		whole = r.artifacts == 0
		bytes := r.artifacts
		if whole {
			bytes = r.bytes
		}
		err := s.free(r.id, whole)
		if errors.Is(err, ErrRunning) {
			r.stays = true
			continue
		}
		if err != nil {
			return freed, total, err
		}
		if whole {
			freed.Runs++
			r.gone = true
		} else {
			freed.Artifacts++
		}
		freed.Bytes += bytes
		total -= bytes
		owners[r.owner] -= bytes
		r.bytes, r.artifacts = r.bytes-bytes, 0
	}
	return freed, total, nil
}

// removeRest removes the remains of interrupted removals.
func (s *Store) removeRest() {
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), removedPrefix) {
			_ = os.RemoveAll(filepath.Join(s.dir, e.Name())) // another process may be removing it too
		}
	}
}

// next returns what to remove next from the owner who uses the most: the oldest run with artifacts, or the oldest
// run. nil means that nothing of this owner may be removed; then other owners keep theirs too.
func next(runs []*kept, owners map[string]int64) (found *kept) {
	most := ""
	for owner, bytes := range owners {
		if bytes > owners[most] || bytes == owners[most] && owner < most {
			most = owner
		}
	}
	for _, r := range runs {
		if r.owner != most || r.gone || r.stays {
			continue
		}
		if r.artifacts > 0 {
			return r
		}
		if found == nil {
			found = r
		}
	}
	return found
}

// free removes a run, or its artifacts.
func (s *Store) free(id string, whole bool) error {
	if whole {
		if err := s.Remove(id); !errors.Is(err, ErrNotFound) {
			return err
		}
		return nil
	}
	gone := s.Path(id, removedPrefix+ArtifactsDir)
	if err := os.Rename(s.Path(id, ArtifactsDir), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(gone)
}

// owner returns a run's owner, "" if its record can't be read; stays reports that the run will resume.
func (s *Store) owner(id string) (owner string, stays bool) {
	rec, ok := s.brief(id)
	if !ok {
		return "", false
	}
	return rec.Owner, rec.Status == Paused
}

// blockBytes is the unit in which file systems allocate. A name without bytes takes about as much: a directory entry
// and an inode.
const blockBytes = 4 << 10

// folderSize returns the bytes that a folder takes on the disk, with its contents, without a run's reserve; unreadable
// files count as none. It does not count bytes of files alone, since code may leave thousands of empty files and
// folders.
func folderSize(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == filepath.Join(dir, reserveFile) && filepath.Base(dir) != ArtifactsDir {
			return nil
		}
		blocks := int64(1)
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			blocks = max(blocks, (info.Size()+blockBytes-1)/blockBytes)
		}
		bytes += blocks * blockBytes
		return nil
	})
	return bytes
}
