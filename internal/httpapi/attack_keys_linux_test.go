package httpapi

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testlack"
)

// On a full disk no key can be stored. That leaves nothing: later the key begins what it is for.
func TestAttackKeysOnFullDisk(t *testing.T) {
	disk := t.TempDir()
	testlack.Disk(t, disk, "size=64k")
	if err := os.WriteFile(filepath.Join(disk, "much"), make([]byte, 64<<10), 0o600); err == nil {
		for i := 0; err == nil; i++ {
			err = os.WriteFile(filepath.Join(disk, fmt.Sprint("more", i)), make([]byte, 4<<10), 0o600)
		}
	}
	dir := filepath.Join(disk, "keys")
	var ks keys
	for i := range 20 {
		k, _ := ks.begin(dir, "alice", fmt.Sprint(i), "request")
		if err := k.load(); err == nil {
			t.Fatal("the disk is not full")
		}
		k.close()
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "files of keys on a full disk", "0", fmt.Sprint(len(left)))
	testlack.Grow(t, disk, "size=1m")
	k := begun(t, &ks, dir, "alice", "0")
	attack.Check(t, "a key that could not be stored, once there is room", "begins", map[bool]string{true: "began before",
		false: "begins"}[k.found])
	k.close()
}
