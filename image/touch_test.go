package image

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The first note of a use must not be before the time of the call.
func TestTouchTime(t *testing.T) {
	for range 200 {
		im := &Image{dir: t.TempDir()}
		before := time.Now()
		if !im.touch() {
			t.Fatal("gone")
		}
		st, err := os.Stat(filepath.Join(im.dir, usedName))
		if err != nil || st.ModTime().Before(before) {
			t.Fatalf("noted %s before the use: %v", before.Sub(st.ModTime()), err)
		}
		if im.Used().Before(before) {
			t.Fatal("used")
		}
	}
	if (&Image{dir: filepath.Join(t.TempDir(), "none")}).touch() {
		t.Error("there")
	}
}
