package packages

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The same packages requested in ever new forms take no more room than the limits. The least recently used are removed,
// and those of a run stay.
func TestRoom(t *testing.T) {
	for name, bound := range map[string]func(*Store){
		"many":  func(s *Store) { s.MaxMany = 4 },
		"bytes": func(s *Store) { s.MaxBytes = 4 * (eachFile + 3*diskBlock) },
	} {
		t.Run(name, func(t *testing.T) { roomForFour(t, bound) })
	}
}

// eachFile is the size of the file in each package, in bytes.
const eachFile = 10_000

// addTo adds a package to a store.
func addTo(s *Store, stream []byte, key string) (*Lock, error) {
	l := &Lock{Key: key}
	return l, s.Add(l, bytes.NewReader(stream))
}

// roomForFour checks a store that has room for four packages.
func roomForFour(t *testing.T, bound func(*Store)) {
	stream := archive(&tar.Header{Name: "a/b", Size: eachFile})
	gone := []string{}
	s := &Store{Dir: filepath.Join(t.TempDir(), "packages"), Removed: func(key string) { gone = append(gone, key) }}
	bound(s)
	var all []*Lock
	for i := range 4 {
		l, err := addTo(s, stream, fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		past := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(l.dir, past, past); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	used, err := s.Hold(all[0]) // used last, and no more
	if err != nil {
		t.Fatal(err)
	}
	used.Unlock()
	held, err := s.Hold(all[1])
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(all[1].dir, long, long); err != nil {
		t.Fatal(err)
	}
	for i := 4; i < 30; i++ {
		if _, err := addTo(s, stream, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		if keys, err := s.Keys(); err != nil || len(keys) > 4 || !slices.Contains(keys, "1") {
			t.Fatalf("%q %v", keys, err)
		}
		time.Sleep(5 * time.Millisecond) // the clock of folders is not exact
	}
	if len(gone) != 26 || !slices.Equal(gone[:4], []string{"2", "3", "0", "4"}) {
		t.Errorf("gone: %q", gone)
	}
	if err := s.Verify(all[1]); err != nil {
		t.Errorf("what is held: %v", err)
	}
	held.Unlock()
	if _, err := addTo(s, stream, "last"); err != nil || !slices.Contains(gone, "1") {
		t.Errorf("what is held no more: %v, gone %q", err, gone)
	}
	if _, err := s.Hold(all[1]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what has gone is held: %v", err)
	}
	allHeld(t, s, stream)
}

// allHeld checks that a store whose packages are all in use has no room.
func allHeld(t *testing.T, s *Store, stream []byte) {
	t.Helper()
	keys, err := s.Keys()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		l, err := s.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		held, err := s.Hold(l)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Unlock()
	}
	if _, err := addTo(s, stream, "no room"); err == nil || !strings.Contains(err.Error(), "wait until some have ended") {
		t.Errorf("all is held: %v", err)
	}
	if again, err := addTo(s, stream, keys[0]); err != nil || again.Key != keys[0] { // in its own place
		t.Error(err)
	}
	if left, err := os.ReadDir(s.Dir); err != nil || len(left) != len(keys) {
		t.Errorf("left: %q %v", left, err)
	}
}

// A store without a limit, whose keys others know, has room for all.
func TestRoomUnbounded(t *testing.T) {
	stream := archive(&tar.Header{Name: "a/b", Size: eachFile})
	s := &Store{Dir: filepath.Join(t.TempDir(), "own")}
	for i := range 10 {
		if err := s.Add(&Lock{Key: fmt.Sprint(i)}, bytes.NewReader(stream)); err != nil {
			t.Fatal(err)
		}
	}
	if keys, err := s.Keys(); err != nil || len(keys) != 10 {
		t.Errorf("without a bound: %q %v", keys, err)
	}
}

// Packages of a run are not removed.
func TestDrop(t *testing.T) {
	gone := []string{}
	s := &Store{Dir: filepath.Join(t.TempDir(), "packages"), Removed: func(key string) { gone = append(gone, key) }}
	l := &Lock{Key: "a"}
	if err := s.Add(l, bytes.NewReader(archive(&tar.Header{Name: "a/b", Size: 10}))); err != nil {
		t.Fatal(err)
	}
	held, err := s.Hold(l)
	if err != nil {
		t.Fatal(err)
	}
	if dropped, err := s.Drop("a"); dropped || err != nil || s.Verify(l) != nil {
		t.Errorf("dropped what is held: %v %v, %v", dropped, err, s.Verify(l))
	}
	held.Unlock()
	if dropped, err := s.Drop("a"); !dropped || err != nil || !slices.Equal(gone, []string{"a"}) {
		t.Errorf("%v %v, told of %v", dropped, err, gone)
	}
	if left, err := os.ReadDir(s.Dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}
