package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/filelock"
)

func TestCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "memo.json")
	c := OpenCache(path)
	c.Put("a", "1")
	c.Put("b", "2")
	c.Put("b", "")
	if v, ok := OpenCache(path).Get("a"); v != "1" || !ok {
		t.Error("a is forgotten")
	}
	if _, ok := OpenCache(path).Get("b"); ok {
		t.Error("b is remembered")
	}
	for i := range 3 * maxCached {
		c.Put(strings.Repeat("k", i+1), "v")
	}
	if n := len(OpenCache(path).values); n > maxCached {
		t.Errorf("%d values", n)
	}
	for _, broken := range []string{"", "null", "[1]", "{\"a\":", strings.Repeat("x", 2<<20)} {
		if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		c := OpenCache(path)
		if _, ok := c.Get("a"); ok {
			t.Error("a value out of nothing")
		}
		c.Put("a", "1") // and it works again
	}
	// If the cache can't be written, it is only slower.
	OpenCache("/proc/nothing/memo.json").Put("a", "1")
}

// Values that this process has put stay even if the file can't be written, or another process keeps it locked. One Put
// waits, later ones do not.
func TestCacheAlone(t *testing.T) {
	c := OpenCache("/proc/nothing/memo.json")
	c.Put("a", "1")
	c.Put("b", "2")
	if a, _ := c.Get("a"); a != "1" {
		t.Errorf("got %q, want what was put", a)
	}
	path := filepath.Join(t.TempDir(), "memo.json")
	lock, err := filelock.Take(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	c = OpenCache(path)
	began := time.Now()
	for n := range 5 {
		c.Put(fmt.Sprint(n), "v")
	}
	if took := time.Since(began); took > 2*cacheLockTime {
		t.Errorf("5 values took %v beside a held lock, want one wait of %v", took, cacheLockTime)
	}
	if v, _ := c.Get("4"); v != "v" {
		t.Errorf("got %q, want what was put", v)
	}
}

// A value that another process has removed is stored again.
func TestCacheAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memo.json")
	a, b := OpenCache(path), OpenCache(path)
	a.Put("k", "1")
	b.Put("k", "")
	a.Put("k", "1")
	if v, _ := OpenCache(path).Get("k"); v != "1" {
		t.Errorf("got %q, want 1", v)
	}
}

// Processes that write the cache at once keep the others' values, and their removals.
func TestCacheOfMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memo.json")
	OpenCache(path).Put("old", "1")
	var writers []*Cache // opened before any of them writes
	for range 8 {
		writers = append(writers, OpenCache(path))
	}
	writers[0].Put("old", "")
	var group sync.WaitGroup
	for n, c := range writers {
		group.Go(func() { c.Put(fmt.Sprint(n), "v") })
	}
	group.Wait()
	got := OpenCache(path).values
	if _, old := got["old"]; old || len(got) != len(writers) {
		t.Errorf("got %v, want a value of each of %d writers", got, len(writers))
	}
}
