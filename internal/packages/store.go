package packages

import (
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
)

// Lock says exactly what was installed for a request. It is beside the files. A build that finds a lock installs the
// same versions, with the same digests, or fails.
type Lock struct {
	Schema   int       `json:"schema"`
	Key      string    `json:"key"`
	Asked    []string  `json:"asked"`
	System   string    `json:"system"`  // pip or npm
	Runtime  string    `json:"runtime"` // and the version of the language
	Arch     string    `json:"arch"`
	Registry string    `json:"registry"` // the one that was asked first
	Packages []Package `json:"packages"`
	// Npm is npm's own package-lock.json.
	Npm json.RawMessage `json:"npm,omitempty"`

	Digest string `json:"digest"` // of all files: their paths, modes and contents
	Files  int    `json:"files"`
	Links  bool   `json:"links,omitempty"` // links out of the folder are kept unchanged, too
	// LeftOut names omitted links, at most maxLeftOut; LeftOutMany counts all.
	LeftOut     []string  `json:"leftOut,omitempty"`
	LeftOutMany int       `json:"leftOutMany,omitempty"`
	Bytes       int64     `json:"bytes"`
	Built       time.Time `json:"built"`
	Room        int64     `json:"room,omitempty"` // bytes on the disk, at most
	// Stamp shows without reading the files that they still match Digest.
	Stamp string `json:"stamp,omitempty"`

	dir string
}

// Package is a package in a lock.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Digest  string `json:"digest,omitempty"` // of its archive: sha256-HEX or sha512-BASE64
}

const (
	lockSchema = 1
	lockName   = "lock.json"
	filesName  = "files"

	// Limits of a build's output.
	MaxFiles = 60_000
	MaxBytes = 1 << 30
	maxLock  = 16 << 20 // bytes of its text
	maxDepth = 100      // folders in one another
	maxPath  = 1000     // bytes of a path

	maxLeftOut = 20 // names of omitted links; more would not help
)

// Folder returns the folder of the installed files.
func (l *Lock) Folder() string { return filepath.Join(l.dir, filesName) }

// ErrDamaged means that files differ from those that were built.
var ErrDamaged = errors.New("the files are not those that were built")

// Get returns the lock of the set with a key; the error wraps fs.ErrNotExist if there is no such set.
func (s *Store) Get(key string) (*Lock, error) {
	l := &Lock{dir: filepath.Join(s.Dir, key)}
	text, err := readBounded(filepath.Join(l.dir, lockName), maxLock)
	if errors.Is(err, errTooLarge) {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(text), l); err != nil || l.Key != key || l.Schema != lockSchema {
		return nil, fmt.Errorf("%w: %s can't be read", ErrDamaged, filepath.Join(l.dir, lockName))
	}
	return l, nil
}

// Keys returns the keys of all sets, complete or damaged.
func (s *Store) Keys() (keys []string, err error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			keys = append(keys, e.Name())
		}
	}
	return keys, nil
}

// List returns all sets, the newest first.
func (s *Store) List() ([]*Lock, error) {
	keys, err := s.Keys()
	list := []*Lock{}
	for _, key := range keys {
		if l, err := s.Get(key); err == nil {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b *Lock) int { return b.Built.Compare(a.Built) })
	return list, err
}

// Remove removes the set with a key; with "", it removes leftovers of builds.
func (s *Store) Remove(key string) error {
	if key != "" {
		return os.RemoveAll(filepath.Join(s.Dir, key))
	}
	left, _ := filepath.Glob(filepath.Join(s.Dir, ".new-*"))
	var errs []error
	for _, dir := range left {
		if st, err := os.Stat(dir); err == nil && time.Since(st.ModTime()) > time.Hour { // longer than any build takes
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// Restamp records that the files were just found to match the digest.
func (s *Store) Restamp(l *Lock, stamp string) error {
	l.Stamp = stamp
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	if text = append(text, '\n'); len(text) > maxLock {
		return fmt.Errorf("has a lock of more than %d MiB", maxLock>>20)
	}
	return atomicfile.Write(filepath.Join(l.dir, lockName), text, 0o600)
}

// Verify reads all files and compares them with the digest.
func (s *Store) Verify(l *Lock) error {
	all := contents{}
	root := l.Folder()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if info.Mode().Type() == fs.ModeSymlink {
			target, err := os.Readlink(name)
			all.addLink(filepath.ToSlash(rel), target)
			return err
		}
		if !info.Mode().IsRegular() {
			return ErrDamaged
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return err
		}
		all.add(filepath.ToSlash(rel), info.Mode(), sum.Sum(nil))
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if all.digest() != l.Digest {
		return ErrDamaged
	}
	return nil
}

// contents are the lines that a digest covers: one for each file and link.
type contents []string

func (c *contents) add(name string, mode fs.FileMode, sum []byte) {
	*c = append(*c, fmt.Sprintf("%q %v %x\n", name, mode&0o100 != 0, sum))
}

func (c *contents) addLink(name, target string) {
	*c = append(*c, fmt.Sprintf("%q to %q\n", name, target))
}

func (c contents) digest() string {
	slices.Sort(c)
	h := sha256.New()
	for _, line := range c {
		io.WriteString(h, line)
	}
	return "sha256-" + hex.EncodeToString(h.Sum(nil))
}

// Add stores the files of a tar stream, which may come from a machine that ran foreign code. It accepts regular files,
// folders, and links that stay inside (any link, if the lock says so). Another name of a file becomes a copy, which
// counts like any file. The lock names what was omitted. If the stream ends early, nothing stays. Without a key, the
// set is stored under its digest.
func (s *Store) Add(l *Lock, stream io.Reader) (err error) {
	if err := CheckNpm(l.Npm); err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(s.Dir, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	l.dir, l.Schema = tmp, lockSchema
	if err := os.Mkdir(l.Folder(), 0o755); err != nil {
		return err
	}
	if err := l.unpack(stream); err != nil {
		return err
	}
	if l.Key == "" {
		l.Key = strings.TrimPrefix(l.Digest, "sha256-")
		if have, err := s.Get(l.Key); err == nil && s.Verify(have) == nil { // and somebody may be reading it
			l.dir = have.dir
			return nil
		}
	}
	if err := s.Restamp(l, ""); err != nil {
		return err
	}
	turn, err := s.makeRoom(l)
	if err != nil {
		return err
	}
	defer turn.Unlock()
	final := filepath.Join(s.Dir, l.Key)
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	if err := os.Rename(tmp, final); err != nil {
		return err
	}
	l.dir = final
	return nil
}
