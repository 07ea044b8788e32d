package machine

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"
)

// If a host temporarily can't read a paused machine, it does not count as damaged.
func TestDamaged(t *testing.T) {
	for errno, want := range map[syscall.Errno]bool{syscall.EMFILE: false, syscall.ENFILE: false, syscall.EIO: false,
		syscall.ENOMEM: false, syscall.EACCES: false,
		syscall.ENOENT: true, syscall.EISDIR: true, syscall.ENOTDIR: true, syscall.ELOOP: true} {
		err := damaged("folder", &fs.PathError{Op: "open", Path: "memory", Err: errno})
		if errors.Is(err, ErrPause) != want {
			t.Errorf("%s: %v", errno, err)
		}
	}
	if err := damaged("folder", errors.New("the digest of its state is wrong")); !errors.Is(err, ErrPause) {
		t.Error(err)
	}
}
