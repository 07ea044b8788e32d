package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/filelock"
)

// Templates is a folder of snapshots to clone machines from. Each has a folder, named by the digest of everything
// that a clone must have in common with it. Folders are 0700, memory is 0644 and other files 0600. Templates
// holds no state: any number of processes may use the folder.
type Templates struct{ dir string }

// OpenTemplates returns the store in dir, which is created with the first template.
func OpenTemplates(dir string) *Templates { return &Templates{dir} }

// Renewal of templates: an attacker could learn, run by run, what its clones share (address layout, V8's hash
// seed). At half of either limit a successor is due, which replaces the template before it expires.
const (
	maxTemplateAge  = 6 * time.Hour
	maxTemplateUses = 1000
	maxTemplates    = 8 // the least recently cloned are removed first; one takes 60 to 200 MiB
	maxFolders      = 3 // of those that contain folders; one takes up to the machine's memory
)

// ErrTemplate means that a template is damaged.
var ErrTemplate = errors.New("template is damaged")

var errNoMemfd = errors.New("this system has no memfd: runs boot cold")

const (
	templateName = "template.json"
	usesName     = "uses" // a byte for each clone
)

type templateInfo struct {
	Key     string    `json:"key"`
	Created time.Time `json:"created"`
	keptFiles
}

func (s *Templates) path(key, name string) string { return filepath.Join(s.dir, digestOf(key), name) }

func digestOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// Created returns when the template of a key was made, or fs.ErrNotExist if there is none that is still fresh.
func (s *Templates) Created(key string) (time.Time, error) {
	var created time.Time
	err := s.inside(key, func(dir *os.Root) error {
		info, err := s.info(dir, key)
		created = info.Created
		return err
	})
	return created, err
}

// Want is what a key's template lacks.
type Want int

const (
	Nothing   Want = iota // it exists, or is being made
	Missing               // there is no fresh one
	Successor             // half of its life is over
)

// Wants returns what should be made for a key.
func (s *Templates) Wants(key string) Want {
	want := Successor
	if _, err := s.Created(key); err != nil {
		want = Missing
	} else if !s.due(key) {
		return Nothing
	}
	unlock, ok := s.Lock(key)
	if !ok {
		return Nothing
	}
	unlock()
	return want
}

// due reports whether half of a template's life is over.
func (s *Templates) due(key string) bool {
	created, err := s.Created(key)
	return err != nil || time.Since(created) > maxTemplateAge/2 || s.uses(key) >= maxTemplateUses/2
}

func (s *Templates) info(dir *os.Root, key string) (info templateInfo, err error) {
	text, err := dir.ReadFile(templateName)
	if err != nil {
		return info, err
	}
	if json.Unmarshal(text, &info) != nil || info.Key != key {
		return info, s.damaged(key, "its description can't be read")
	}
	var uses int64
	if st, err := dir.Stat(usesName); err == nil {
		uses = st.Size()
	}
	if age := time.Since(info.Created); age > maxTemplateAge || age < 0 || uses >= maxTemplateUses {
		return info, fs.ErrNotExist
	}
	return info, nil
}

func (s *Templates) damaged(key, why string) error {
	return fmt.Errorf("%w: %s: %s", ErrTemplate, s.path(key, ""), why)
}

// opened is a template whose memory has not been read yet.
type opened struct {
	info    templateInfo
	devices []byte
	memory  *os.File
}

// inside calls look with the folder of a key's template. If look fails because a successor replaced the template
// meanwhile, inside calls it with the successor's folder.
func (s *Templates) inside(key string, look func(*os.Root) error) error {
	for {
		dir, err := os.OpenRoot(s.path(key, ""))
		if err != nil {
			return err
		}
		err = look(dir)
		before, err1 := dir.Stat(".")
		after, err2 := os.Stat(s.path(key, ""))
		dir.Close()
		if err == nil || err1 != nil || err2 != nil || os.SameFile(before, after) {
			return err
		}
	}
}

// open opens the template of a key, and checks everything except its memory's content.
func (s *Templates) open(key string) (o *opened, err error) {
	err = s.inside(key, func(dir *os.Root) error {
		o, err = s.openIn(dir, key)
		return err
	})
	return o, err
}

func (s *Templates) openIn(dir *os.Root, key string) (*opened, error) {
	info, err := s.info(dir, key)
	if err != nil {
		return nil, err
	}
	memory, devices, stamped, err := info.open(dir)
	if err != nil {
		return nil, s.damaged(key, err.Error())
	}
	if !stamped {
		memory.Close()
		return nil, s.damaged(key, "its memory was changed")
	}
	return &opened{info, devices, memory}, nil
}

// Check returns an error if the template of a key can't be used; the errors are those of Load.
func (s *Templates) Check(key string) error {
	o, err := s.open(key)
	if err != nil {
		return err
	}
	return o.memory.Close()
}

// Map is like Load, for a QEMU that maps the template's own file. Nothing is copied, and machines share the pages that
// were read from the disk. The memory is open for reading.
func (s *Templates) Map(key string) (*Snapshot, error) {
	o, err := s.open(key)
	if err != nil {
		return nil, err
	}
	return o.load(true)
}

func (o *opened) load(mapped bool) (*Snapshot, error) {
	return load(o.memory, o.devices, o.info.Created, mapped)
}

// Load loads the template of a key. The error is fs.ErrNotExist if there is no fresh template; it wraps
// ErrTemplate if the template is damaged.
func (s *Templates) Load(key string) (*Snapshot, error) {
	if !CanClone {
		return nil, fs.ErrNotExist
	}
	o, err := s.open(key)
	if err != nil {
		return nil, err
	}
	return o.load(false)
}

func (s *Templates) uses(key string) int64 {
	st, err := os.Stat(s.path(key, usesName))
	if err != nil {
		return 0
	}
	return st.Size()
}

// Used counts a clone.
func (s *Templates) Used(key string) {
	f, err := os.OpenFile(s.path(key, usesName), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	_, _ = f.Write([]byte{'.'})
	f.Close()
}

// Lock takes the right to make a template; ok is false when another process has it. The kernel releases it when
// the process dies.
func (s *Templates) Lock(key string) (unlock func(), ok bool) {
	lock, err := filelock.Try(filepath.Join(s.dir, "."+digestOf(key)+".lock"))
	if err != nil {
		return nil, false
	}
	return lock.Unlock, true
}

// minFree is the space that a template must leave free in its file system.
const minFree = 256 << 20

// Room returns an error if a template of at most size bytes does not fit.
func (s *Templates) Room(size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return fmt.Errorf("save template: %w", err)
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < size+minFree {
		return fmt.Errorf("save template: %s has %d MiB free: a template may take %d, and leaves %d", s.dir, free>>20,
			size>>20, minFree>>20)
	}
	return nil
}

// makeInHome creates a folder of the home. It does not bring back a home that somebody has removed meanwhile: templates
// are made in the background.
func makeInHome(dir string) error {
	if err := os.Mkdir(dir, 0o700); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Save stores a snapshot as the template of a key, atomically, and removes the least recently used ones beyond
// the limit. The caller holds the key's lock.
func (s *Templates) Save(key string, memory *os.File, state []byte) error {
	if err := makeInHome(s.dir); err != nil {
		return fmt.Errorf("save template: %w", err)
	}
	tmp, err := os.MkdirTemp(s.dir, ".new-")
	if err != nil {
		return fmt.Errorf("save template: %w", err)
	}
	defer os.RemoveAll(tmp)
	info := templateInfo{Key: key, Created: time.Now().UTC()}
	st, err := memory.Stat()
	if err != nil {
		return fmt.Errorf("save template: %w", err)
	}
	info.keptFiles, err = keep(tmp, st.Size(), func(to *os.File) ([]byte, error) { return state, CopyMemory(to, memory) },
		nil)
	if err != nil {
		return fmt.Errorf("save template: %w", err)
	}
	text, err := json.Marshal(info)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, templateName), text, 0o600); err != nil {
		return fmt.Errorf("save template: %w", err)
	}
	// A successor replaces the template atomically, if the file system can swap names: the template is never missing.
	if err := replace(filepath.Join(s.dir, digestOf(key)), tmp); err != nil {
		return fmt.Errorf("save template: %w", err)
	}
	_, _ = s.Prune(maxTemplates) // failing to remove others is not an error
	return nil
}

// Drop removes the template of a key. It returns whether there was one, and an error if it is still there.
func (s *Templates) Drop(key string) (had bool, err error) {
	_, missing := os.Lstat(s.path(key, templateName))
	if err = os.RemoveAll(filepath.Join(s.dir, digestOf(key))); err != nil {
		err = fmt.Errorf("remove template: %w", err)
	}
	return missing == nil, err
}

// Prune removes all templates except the keep that were last cloned or made, and leftovers of a killed maker. It
// returns how many it removed, and errors for those that it could not remove.
func (s *Templates) Prune(keep int) (removed int, err error) {
	list, left, err := s.aged()
	if err != nil {
		return 0, err
	}
	kept, folders := 0, 0
	for _, t := range list {
		if kept < keep && (!t.folders || folders < maxFolders) {
			kept++
			if t.folders {
				folders++
			}
			continue
		}
		left = append(left, t.name)
	}
	for _, name := range left {
		if e := os.RemoveAll(filepath.Join(s.dir, name)); e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed++
	}
	return removed, err
}

// agedTemplate is a template by its folder, and its last use.
type agedTemplate struct {
	name    string
	used    time.Time
	folders bool
}

// aged returns the templates, the last used first, and folders that a killed maker left. It removes old notes about
// failures.
func (s *Templates) aged() (list []agedTemplate, left []string, err error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	for _, e := range entries {
		text, readErr := os.ReadFile(filepath.Join(s.dir, e.Name(), templateName))
		var info templateInfo
		if readErr == nil {
			readErr = json.NewDecoder(bytes.NewReader(text)).Decode(&info)
		}
		if st, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), failuresSuffix) &&
			time.Since(st.ModTime()) > giveUpFor {
			_ = os.Remove(filepath.Join(s.dir, e.Name()))
		}
		switch {
		case !e.IsDir():
		case readErr == nil && e.Name()[0] != '.':
			if st, err := os.Stat(filepath.Join(s.dir, e.Name(), usesName)); err == nil && st.ModTime().After(info.Created) {
				info.Created = st.ModTime()
			}
			list = append(list, agedTemplate{e.Name(), info.Created, strings.Contains(info.Key, foldersMark)})
		default:
			st, statErr := e.Info()
			if statErr == nil && time.Since(st.ModTime()) > time.Hour {
				left = append(left, e.Name())
			}
		}
	}
	slices.SortFunc(list, func(a, b agedTemplate) int { return b.used.Compare(a.used) })
	return list, left, err
}
