package image

import (
	"os"
	"testing"

	"github.com/unitask/unitask/internal/testlack"
)

// A full disk does not prevent the removal of files that makes room.
func TestRemoveOnFullDisk(t *testing.T) {
	s := &Store{home: testlack.FullDisk(t, "images/aa"), log: func(string) {}}
	if digest, err := s.Remove("aa"); err != nil || digest != "aa" {
		t.Errorf("%q %v", digest, err)
	}
	if left, err := os.ReadDir(s.imagesDir()); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}
