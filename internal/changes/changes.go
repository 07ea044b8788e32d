// Package changes keeps sets of changes to the host's files: what a model proposed, or what a run's code left in /out.
// A set has the digests of the files before and after, and their texts. It is shown as a diff, applied as a whole or
// not at all, and undone. The rule of package export decides which files a set may have.
//
// The package asks nobody: its callers, cli and mcp, show the diff and ask. It never follows a link, never makes a file
// executable, and never overwrites a file that differs from the one in the diff.
package changes

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/export"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/internal/regular"
	"github.com/unitask/unitask/policy"
)

// Limits of a set, and of a home's applied sets and its others.
const (
	maxCompared  = 100_000   // files of a proposal that are compared
	maxChanges   = 1000      // files that a set changes
	maxFileBytes = 64 << 20  // of one file
	maxSetBytes  = 256 << 20 // of the texts before and after the change
	maxSets      = 200       // applied sets of a home, and as many others
	maxKept      = 1 << 30   // bytes of all applied sets, and of all others
)

// State is the state of a set.
type State string

const (
	Proposed State = "proposed"
	Applying State = "applying" // or its process ended meanwhile: applying or undoing it again completes it
	Applied  State = "applied"
	Undoing  State = "undoing"
	Undone   State = "undone"
)

// Errors of a set.
var (
	ErrNotFound = errors.New("no such set of changes")
	ErrNothing  = errors.New("nothing would change")
	ErrState    = errors.New("can't be done in this state")
)

// Change is a change of one file.
type Change struct {
	Path   string      `json:"path"`             // with slashes, below the set's folder
	Before string      `json:"before,omitempty"` // the digest of its text, as sha256:…; "" if the file is new
	After  string      `json:"after,omitempty"`  // "" removes the file
	Mode   fs.FileMode `json:"mode,omitempty"`   // its permissions before
	Same   bool        `json:"same,omitempty"`   // the file had that text already when the set was applied
}

// Set is a set of changes to files below a folder.
type Set struct {
	ID      string    `json:"id"`
	Dir     string    `json:"dir"`            // absolute, without links
	From    string    `json:"from,omitempty"` // whose files they are: "run ID" or "session NAME"
	By      string    `json:"by,omitempty"`   // who proposed it
	Created time.Time `json:"created"`
	State   State     `json:"state"`
	Changes []Change  `json:"changes"`
	Folders []string  `json:"folders,omitempty"` // that were made for it
	Left    []string  `json:"left,omitempty"`    // files that an undo left as they are, since they have another text
}

// File is a proposed file.
type File struct {
	Path  string                        // with slashes, below the folder
	Named bool                          // somebody named it, so the rule for names does not apply
	Open  func() (io.ReadCloser, error) // its new text; nil removes it
	// Was, if not nil, is the digest that the file there must have, "" for none. Otherwise it changed after its new text
	// was made, and Propose fails.
	Was *string
}

// Store is the sets of a home. Any number of processes may use one.
type Store struct {
	home home.Dir
	own  string // the home, without links
	log  *audit.Journal
}

// Open returns the sets of a home. Their use is logged in log.
func Open(dir string, log *audit.Journal) *Store {
	own, err := realpath.Of(dir)
	if err != nil {
		own = dir
	}
	return &Store{home.Dir(dir), own, log}
}

func (s *Store) in(id string, name ...string) string {
	return filepath.Join(append([]string{s.home.Changes(), id}, name...)...)
}

// lock excludes other changes of sets, and of the files in them.
func (s *Store) lock() (*filelock.Lock, error) { return filelock.Take(s.home.Lock("changes")) }

// Propose stores a set of changes to files below a folder, and changes none of them. Files that the rule excludes are
// left out, with reasons. The error is ErrNothing if the files have these texts already.
func (s *Store) Propose(dir, from, by string, files []File) (*Set, []export.Left, error) {
	if len(files) > maxCompared {
		return nil, nil, fmt.Errorf("it has %d files, and %d are the most", len(files), maxCompared)
	}
	root, err := OpenDir(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	if policy.Within(s.own, dir) {
		return nil, nil, fmt.Errorf("%s is in unitask's own folder", dir)
	}
	lock, err := s.lock()
	if err != nil {
		return nil, nil, err
	}
	defer lock.Unlock()
	if err := s.bound(); err != nil {
		return nil, nil, err
	}
	set := &Set{ID: newID(), Dir: dir, From: from, By: by, Created: time.Now().UTC(), State: Proposed}
	if err := os.MkdirAll(s.in(set.ID), 0o700); err != nil {
		return nil, nil, err
	}
	left, err := s.fill(set, root, files)
	if err == nil && len(set.Changes) == 0 {
		err = ErrNothing
	}
	if err == nil {
		err = s.save(set)
	}
	if err == nil {
		err = s.note(audit.ChangesProposed, set, nil)
	}
	if err != nil {
		return nil, left, errors.Join(err, os.RemoveAll(s.in(set.ID)))
	}
	return set, left, nil
}

// fill compares the files with those that are there, and stores both texts of each that differs.
func (s *Store) fill(set *Set, root *os.Root, files []File) (left []export.Left, err error) {
	seen, total := map[string]bool{}, int64(0)
	for _, f := range files {
		reason := ""
		switch {
		case badPath(f.Path):
			reason = "is not a path below the folder"
		case seen[f.Path]:
			reason = "is there twice"
		case !f.Named && export.Barred(f.Path) != "":
			reason = export.Barred(f.Path)
		default:
			var size int64
			reason, size, err = s.compare(set, root, f, maxSetBytes-total)
			total += size
		}
		if seen[f.Path] = true; reason != "" {
			left = append(left, export.Left{Path: f.Path, Reason: reason})
		}
		if len(set.Changes) > maxChanges {
			err = fmt.Errorf("more than %d files differ: name some of them", maxChanges)
		}
		if err != nil {
			return left, err
		}
	}
	return left, nil
}

// compare adds a change to the set if a file differs from the existing one. reason explains why the file can't be
// changed. size is the size of both texts, at most the parameter most.
func (s *Store) compare(set *Set, root *os.Root, f File, most int64) (reason string, size int64, err error) {
	old, st, err := OpenFile(root, f.Path)
	if err != nil {
		return err.Error(), 0, nil
	}
	c := Change{Path: f.Path}
	if old != nil {
		defer old.Close()
		c.Mode = st.Mode().Perm()
	}
	switch same, err := isSame(old, f.Open); {
	case same || err != nil:
		return "", 0, err
	case !f.Named && export.RunByTools(f.Path):
		return "tools run a file of that name because it is there: name it to change it", 0, nil
	case !f.Named && c.Mode&0o111 != 0:
		return "the file that is there can be executed: name it to change it", 0, nil
	case !f.Named && old != nil && links(st) > 1:
		return "the file that is there has other hard links, which would keep its old text: name it to change it", 0, nil
	case old != nil && st.Size() > maxFileBytes:
		return fmt.Sprintf("the file that is there has more than %d MiB", maxFileBytes>>20), 0, nil
	case old != nil && st.Size() > most:
		return fmt.Sprintf("the set has more than %d MiB with it", maxSetBytes>>20), 0, nil
	case policy.Within(s.own, filepath.Join(set.Dir, f.Path)):
		return "is in unitask's own folder", 0, nil
	}
	var was int64
	if old != nil {
		c.Before, was, err = s.store(set, func() (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(old, 0, maxFileBytes+1)), nil
		})
	}
	if err == nil && f.Was != nil && *f.Was != c.Before {
		err = fmt.Errorf("%s was changed meanwhile: try again", f.Path)
	}
	if err == nil && f.Open != nil {
		c.After, size, err = s.store(set, f.Open)
	}
	size += was
	switch {
	case err != nil:
		return "", 0, err
	case size-was > maxFileBytes:
		reason = fmt.Sprintf("has more than %d MiB", maxFileBytes>>20)
	case size > most:
		reason = fmt.Sprintf("the set has more than %d MiB with it", maxSetBytes>>20)
	default:
		set.Changes = append(set.Changes, c)
		return "", size, nil
	}
	return reason, 0, s.drop(set, c)
}

// drop removes the texts of a change that the set does not have.
func (s *Store) drop(set *Set, c Change) (err error) {
	for _, digest := range []string{c.Before, c.After} {
		if used := slices.ContainsFunc(set.Changes, func(other Change) bool {
			return other.Before == digest || other.After == digest
		}); digest != "" && !used {
			err = errors.Join(err, os.Remove(s.text(set, digest)))
		}
	}
	return err
}

// isSame reports whether a file has a text already. Either may be missing.
func isSame(old *os.File, open func() (io.ReadCloser, error)) (bool, error) {
	if old == nil || open == nil {
		return old == nil && open == nil, nil
	}
	text, err := open()
	if err != nil {
		return false, err
	}
	defer text.Close()
	sum := sha256.New()
	if n, err := io.Copy(sum, io.LimitReader(text, maxFileBytes+1)); n > maxFileBytes || err != nil {
		return false, err
	}
	digest, err := DigestOf(old)
	return digest == digestPrefix+hex.EncodeToString(sum.Sum(nil)), err
}

// store keeps a text in the set's folder, under its digest.
func (s *Store) store(set *Set, open func() (io.ReadCloser, error)) (digest string, size int64, err error) {
	from, err := open()
	if err != nil {
		return "", 0, err
	}
	defer from.Close()
	tmp := s.in(set.ID, "tmp")
	to, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", 0, err
	}
	sum := sha256.New()
	size, err = io.Copy(io.MultiWriter(to, sum), io.LimitReader(from, maxFileBytes+1))
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil { // it may become the only copy
		return "", 0, err
	}
	name := hex.EncodeToString(sum.Sum(nil))
	return digestPrefix + name, size, os.Rename(tmp, s.in(set.ID, name))
}

const digestPrefix = "sha256:"

// text returns the path of a stored text.
func (s *Store) text(set *Set, digest string) string {
	return s.in(set.ID, strings.TrimPrefix(digest, digestPrefix))
}

const setFile = "set.json"

// maxSetFile bounds a set's description when it is read.
const maxSetFile = 8 << 20

func (s *Store) save(set *Set) error {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	if err := to.Encode(set); err != nil {
		return err
	}
	if text.Len() > maxSetFile {
		return errors.New("its paths are too long: change some of the files")
	}
	return atomicfile.Fill(s.in(set.ID, setFile), 0o600, func(f *os.File) error {
		_, err := f.Write(text.Bytes())
		return errors.Join(err, f.Sync())
	})
}

// Prefix begins the id of each set, and of no run.
const Prefix = "change-"

func newID() string {
	now := strings.Replace(time.Now().UTC().Format("20060102-150405.000"), ".", "", 1)
	return Prefix + now + "-" + strings.ToLower(rand.Text()[:6])
}

// Get returns a set by its id or a prefix of it that no other set has.
func (s *Store) Get(id string) (*Set, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(set *Set) bool { return !strings.HasPrefix(set.ID, id) })
	if id == "" || len(list) == 0 {
		return nil, fmt.Errorf("%q: %w: unitask apply lists them", id, ErrNotFound)
	}
	if len(list) > 1 && list[0].ID != id {
		return nil, fmt.Errorf("%q: %w: %d sets begin so", id, ErrNotFound, len(list))
	}
	return list[0], nil
}

// List returns all sets, the oldest first.
func (s *Store) List() (list []*Set, err error) {
	entries, err := os.ReadDir(s.home.Changes())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		text, err := regular.Read(s.in(e.Name(), setFile), maxSetFile)
		set := &Set{}
		if err != nil || json.Unmarshal(text, set) != nil || set.ID != e.Name() {
			continue // under way, or its process ended while it was made
		}
		list = append(list, set)
	}
	return list, nil
}

// bound makes room for one more set. It removes the oldest ones beyond the limits, and what ended processes left.
// Applied sets, which can be undone, have limits of their own, so that no number of proposals removes them.
func (s *Store) bound() error {
	list, err := s.List()
	if err != nil {
		return err
	}
	known, total, n := map[string]bool{}, map[bool]int64{}, map[bool]int{}
	for _, set := range slices.Backward(list) {
		size, applied := s.bytes(set.ID), set.State == Applied
		known[set.ID] = set.State == Applying || set.State == Undoing && len(set.Left) == 0 ||
			n[applied] < maxSets-1 && total[applied]+size <= maxKept
		if known[set.ID] {
			n[applied]++
			total[applied] += size
		}
	}
	entries, err := os.ReadDir(s.home.Changes())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		_, unread := os.Lstat(s.in(e.Name(), setFile)) // a set that can't be read is kept
		listed := slices.ContainsFunc(list, func(set *Set) bool { return set.ID == e.Name() })
		if !known[e.Name()] && strings.HasPrefix(e.Name(), Prefix) && (listed || unread != nil) {
			err = errors.Join(err, os.RemoveAll(s.in(e.Name())))
		}
	}
	return err
}

func (s *Store) bytes(id string) (total int64) {
	entries, _ := os.ReadDir(s.in(id))
	for _, e := range entries {
		if st, err := e.Info(); err == nil {
			total += st.Size()
		}
	}
	return total
}

// Remove removes a set. The files stay as they are.
func (s *Store) Remove(id string) error {
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Unlock()
	set, err := s.Get(id)
	if err != nil {
		return err
	}
	return os.RemoveAll(s.in(set.ID))
}

// Refuse logs that somebody did not want a set applied, and why.
func (s *Store) Refuse(set *Set, why string) error {
	return s.note(audit.ChangesRefused, set, errors.New(why))
}

// maxNoted bounds the files in an entry of the audit log; the set itself has all.
const (
	maxNoted     = 20
	maxNotedPath = 200
)

func (s *Store) note(kind audit.Kind, set *Set, why error) error {
	noted := slices.Clone(set.Changes[:min(len(set.Changes), maxNoted)])
	for i := range noted {
		noted[i].Path = bounded.Text(noted[i].Path, maxNotedPath)
	}
	detail := map[string]any{"id": set.ID, "dir": set.Dir, "state": set.State, "files": len(set.Changes),
		"changes": noted}
	if set.From != "" {
		detail["from"] = set.From
	}
	if why != nil {
		detail["why"] = why.Error()
	}
	return s.log.Append(audit.Entry{Time: time.Now(), Kind: kind, Caller: set.By, Detail: detail})
}
