package image

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A transfer is reported four times a second until it stops, and never as larger than it is.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, bytes int) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, bytes), 0o600); err != nil {
			t.Error(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var seen []int64
		stop := follow(func(done, total int64) {
			if total != 100 {
				t.Errorf("of %d", total)
			}
			seen = append(seen, done)
		}, 100, func() int64 { return bytesIn(dir) })
		wait := func() { <-time.NewTimer(transferTick).C; synctest.Wait() }
		wait()
		put("a", 40)
		wait()
		put("partial/b", 70)
		wait()
		stop()
		wait()
		if want := []int64{0, 40, 100}; !slices.Equal(seen, want) {
			t.Errorf("%v, want %v", seen, want)
		}
	})
	follow(nil, 100, nil)()
	follow(func(int64, int64) { t.Error("of unknown size") }, 0, nil)()
}
