package packages

import (
	"os"
	"testing"

	"github.com/unitask/unitask/internal/testlack"
)

// A full disk does not prevent removals that make room.
func TestDropOnFullDisk(t *testing.T) {
	s := &Store{Dir: testlack.FullDisk(t, "aa")}
	if gone, err := s.Drop("aa"); err != nil || !gone {
		t.Errorf("%v %v", gone, err)
	}
	if left, err := os.ReadDir(s.Dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}
