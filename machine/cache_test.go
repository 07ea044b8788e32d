package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
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
	// Where it can't be written it is only slow.
	OpenCache("/proc/nothing/memo.json").Put("a", "1")
}

// Processes that write the cache at once keep what the others put, and forget what they forgot.
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
