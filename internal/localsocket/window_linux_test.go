package localsocket

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// A socket has its mode from its creation on: another user in its folder can never connect.
func TestAttackWindow(t *testing.T) {
	dir := t.TempDir()
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	addr, done, err := address(dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	l, err := bind(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	st, err := os.Stat(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "another user connects before a socket has its mode", "-rw-------", st.Mode().Perm().String())
}
