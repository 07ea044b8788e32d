package disuse

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestSpares(t *testing.T) {
	week := time.Unix(1000, 0)
	for _, c := range []struct {
		rule Rule
		used time.Time
		want bool
	}{{Rule{}, time.Unix(2000, 0), false}, {Rule{Since: week}, time.Unix(2000, 0), true},
		{Rule{Since: week}, week, false}, {Rule{Since: week}, time.Time{}, false}} {
		if got := c.rule.Spares(c.used); got != c.want {
			t.Errorf("%v, used %v: got %v, want %v", c.rule, c.used, got, c.want)
		}
	}
}

// A file with two names counts once in all.
func TestSize(t *testing.T) {
	dir := t.TempDir()
	for _, folder := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	one := filepath.Join(dir, "a", "x")
	if err := os.WriteFile(one, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	alone := Size(dir)
	if err := os.Link(one, filepath.Join(dir, "b", "x")); err != nil {
		t.Fatal(err)
	}
	if got := Size(dir); got != alone || alone < 1<<16 || Size(filepath.Join(dir, "a")) != alone/2 {
		t.Errorf("%d bytes with one name, %d with two", alone, got)
	}
}
