package compiled

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/disuse"
	"github.com/unitask/unitask/internal/filelock"
)

func add(s *Store, key string, program []byte) bool {
	d := s.New(key)
	defer d.Discard()
	for part := range slices.Chunk(program, contract.MaxChunk) {
		d.Write(part)
	}
	d.Keep()
	return d.Kept()
}

func names(t *testing.T, s *Store) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestKey(t *testing.T) {
	keys := map[string]bool{}
	for _, of := range [][]string{{}, {""}, {"", ""}, {"a", "b"}, {"ab", ""}, {"", "ab"}, {"ab"}, {"a", "b", ""}} {
		keys[Key(of...)] = true
	}
	if len(keys) != 8 || len(Key()) != 2*sha256.Size {
		t.Errorf("%v", keys)
	}
}

func TestKeep(t *testing.T) {
	s := &Store{Dir: filepath.Join(t.TempDir(), "compiled")}
	key, program := Key("a"), bytes.Repeat([]byte("program"), 100000)
	if s.Get(key) != nil || !add(s, key, program) || !bytes.Equal(s.Get(key), program) || s.Get(Key("b")) != nil {
		t.Fatal("it is not what was kept")
	}
	if !add(s, key, []byte("another")) || string(s.Get(key)) != "another" {
		t.Error("it was not replaced")
	}
	dir, err := os.Stat(s.Dir)
	st, e := os.Stat(filepath.Join(s.Dir, key))
	if err != nil || e != nil || dir.Mode().Perm() != 0o700 || st.Mode() != 0o600 {
		t.Errorf("%v %v %v %v", dir, st, err, e)
	}
	d := s.New(Key("half"))
	d.Write([]byte("half"))
	d.Discard()
	d.Discard()
	d.Keep()
	if d.Kept() || !slices.Equal(names(t, s), []string{key}) {
		t.Errorf("%v", names(t, s))
	}
	if n, err := s.Prune(disuse.Rule{}); n.Count != 1 || err != nil || len(names(t, s)) != 0 {
		t.Errorf("%d %v", n, err)
	}
	if n, err := (&Store{Dir: "/nowhere/at/all"}).Prune(disuse.Rule{}); n.Count != 0 || err != nil {
		t.Errorf("%d %v", n, err)
	}
}

// A damaged or foreign entry counts as missing, and is removed.
func TestDamaged(t *testing.T) {
	key, program := Key("a"), []byte("a program of some bytes")
	for name, spoil := range map[string]func(file string, entry []byte) error{
		"a bit of the program": func(file string, e []byte) error { e[len(e)-1] ^= 1; return os.WriteFile(file, e, 0o600) },
		"a bit of the seal":    func(file string, e []byte) error { e[0] ^= 0x80; return os.WriteFile(file, e, 0o600) },
		"cut":                  func(file string, e []byte) error { return os.WriteFile(file, e[:len(e)-1], 0o600) },
		"longer":               func(file string, e []byte) error { return os.WriteFile(file, append(e, 0), 0o600) },
		"the seal alone":       func(file string, e []byte) error { return os.WriteFile(file, e[:sha256.Size], 0o600) },
		"half a seal":          func(file string, e []byte) error { return os.WriteFile(file, e[:7], 0o600) },
		"empty":                func(file string, _ []byte) error { return os.WriteFile(file, nil, 0o600) },
		"zeros":                func(file string, e []byte) error { return os.WriteFile(file, make([]byte, len(e)), 0o600) },
		"too large": func(file string, _ []byte) error {
			return os.Truncate(file, contract.MaxProgram+sha256.Size+1)
		},
		"another's": func(file string, _ []byte) error {
			s := &Store{Dir: filepath.Dir(file)}
			if !add(s, Key("b"), []byte("another's")) {
				return fs.ErrInvalid
			}
			return os.Rename(filepath.Join(s.Dir, Key("b")), file)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Store{Dir: t.TempDir()}
			file := filepath.Join(s.Dir, key)
			if !add(s, key, program) {
				t.Fatal("not kept")
			}
			entry, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := spoil(file, entry); err != nil {
				t.Fatal(err)
			}
			if got := s.Get(key); got != nil || len(names(t, s)) != 0 {
				t.Errorf("%q %v", got, names(t, s))
			}
		})
	}
	s := &Store{Dir: t.TempDir()}
	add(s, Key("b"), program)
	if err := os.Symlink(filepath.Join(s.Dir, Key("b")), filepath.Join(s.Dir, key)); err != nil {
		t.Fatal(err)
	}
	if s.Get(key) != nil {
		t.Error("a link was followed")
	}
}

// The least recently used entries are removed to make room, and small ones count with a minimum size.
func TestRoom(t *testing.T) {
	s := &Store{Dir: t.TempDir(), MaxBytes: 4 * leastRoom}
	at := time.Now().Add(-time.Hour)
	for i, key := range []string{"a", "b", "c", "d"} {
		if !add(s, key, []byte(key)) {
			t.Fatal(key)
		}
		when := at.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(filepath.Join(s.Dir, key), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if s.Get("a") == nil || !add(s, "e", []byte("e")) || !slices.Equal(names(t, s), []string{"a", "c", "d", "e"}) {
		t.Errorf("%v", names(t, s))
	}
	if !add(s, "e", []byte("again")) || !slices.Equal(names(t, s), []string{"a", "c", "d", "e"}) {
		t.Errorf("%v", names(t, s))
	}
	if !add(s, "large", make([]byte, 3*leastRoom-sha256.Size)) || len(names(t, s)) != 2 {
		t.Errorf("%v", names(t, s))
	}
	if add(s, "larger", make([]byte, 4*leastRoom)) {
		t.Error("it is larger than the room")
	}
	if left := names(t, s); len(left) > 2 {
		t.Errorf("%v", left)
	}
	if n, err := s.Prune(disuse.Rule{}); n.Count != 2 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	left := filepath.Join(s.Dir, newPrefix+"1")
	if err := errors.Join(os.WriteFile(left, nil, 0o600),
		os.Mkdir(filepath.Join(s.Dir, "lost+found"), 0o700)); err != nil {
		t.Fatal(err)
	}
	half := s.New("half") // it counts as well
	defer half.Discard()
	half.Write(make([]byte, 2*leastRoom))
	if !add(s, "f", []byte("f")) || add(s, "g", make([]byte, 2*leastRoom)) || s.Get("f") == nil {
		t.Errorf("%v", names(t, s))
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("what was left behind is still there")
	}
	// Unfinished entries, and the folder, stay.
	if n, err := s.Prune(disuse.Rule{}); n.Count != 1 || err != nil || len(names(t, s)) != 2 {
		t.Errorf("%d %v %v", n, err, names(t, s))
	}
	half.Keep()
	if !half.Kept() {
		t.Error("it was taken away while it was written")
	}
}

// A run does not wait for another process that uses the store.
func TestLocked(t *testing.T) {
	s := &Store{Dir: t.TempDir()}
	lock, err := filelock.Alone(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if add(s, "a", []byte("a")) || len(names(t, s)) != 0 {
		t.Error(names(t, s))
	}
	lock.Unlock()
	if !add(s, "a", []byte("a")) {
		t.Error("it is free")
	}
}

// A read-only or missing folder is a store that keeps nothing.
func TestUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		s := &Store{Dir: dir}
		if add(s, "a", []byte("a")) || s.Get("a") != nil {
			t.Error(dir)
		}
	}
}

// Many at once leave complete entries.
func TestAtOnce(t *testing.T) {
	s := &Store{Dir: t.TempDir(), MaxBytes: 3 * leastRoom}
	var all sync.WaitGroup
	var found atomic.Int32
	for i := range 8 {
		all.Go(func() {
			for j := range 20 {
				key := fmt.Sprint((i + j) % 5)
				want := strings.Repeat(key, 10000)
				add(s, key, []byte(want))
				got := s.Get(key)
				if got != nil && string(got) != want {
					t.Errorf("%.20q", got)
				}
				if got != nil {
					found.Add(1)
				}
			}
		})
	}
	all.Wait()
	if left := names(t, s); len(left) > 3 || found.Load() == 0 {
		t.Errorf("%v", left)
	}
}
