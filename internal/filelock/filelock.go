// Package filelock excludes processes from each other by locks on files (flock(2)). The kernel drops a lock when its
// process ends in any way, so no lock is ever stale. A lock belongs to an open file, not to a process: a process that
// opens the file twice locks itself out.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld means that another open file has the lock.
var ErrHeld = errors.New("is locked by another process")

// Lock is a lock that is held until Unlock.
type Lock struct{ file *os.File }

// Unlock releases the lock. It may be called on nil, and twice.
func (l *Lock) Unlock() {
	if l != nil {
		l.file.Close()
	}
}

// File returns the locked file.
func (l *Lock) File() *os.File { return l.file }

// open creates the file and its folder if they are missing. It refuses a symbolic link.
func open(name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

func take(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("%s %w", f.Name(), ErrHeld)
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// looks is how often Try retries when it meets a Held, which has the lock for microseconds.
const looks = 20

// Try takes the lock of a file, or returns ErrHeld at once if it is taken. It ignores the short lock of a Held.
func Try(name string) (*Lock, error) {
	for range looks {
		l, err := lock(name, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, ErrHeld) || Held(name) {
			return l, err
		}
		time.Sleep(time.Millisecond)
	}
	return lock(name, unix.LOCK_EX|unix.LOCK_NB)
}

// Take waits for the lock of a file. Use it for locks that are held for moments.
func Take(name string) (*Lock, error) { return lock(name, unix.LOCK_EX) }

// Share takes a shared lock of an existing file or folder. It excludes exclusive locks.
func Share(name string) (*Lock, error) { return lockThere(name, unix.LOCK_SH) }

// Alone waits for the exclusive lock of an existing file or folder. Use it for locks that are held for moments.
func Alone(name string) (*Lock, error) { return lockThere(name, unix.LOCK_EX) }

// TryAlone takes the exclusive lock of an existing file or folder, or returns ErrHeld at once.
func TryAlone(name string) (*Lock, error) { return lockThere(name, unix.LOCK_EX|unix.LOCK_NB) }

func lockThere(name string, how int) (*Lock, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return locked(f, how)
}

func lock(name string, how int) (*Lock, error) {
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	return locked(f, how)
}

func locked(f *os.File, how int) (*Lock, error) {
	if err := take(f, how); err != nil {
		f.Close()
		return nil, err
	}
	return &Lock{f}, nil
}

// again is the time between two tries of Wait.
const again = 50 * time.Millisecond

// Wait waits for the lock of a file until ctx ends. It calls waiting once if the lock is not free at once.
func Wait(ctx context.Context, name string, waiting func()) (*Lock, error) {
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	for waited := false; ; waited = true {
		err := take(f, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return &Lock{f}, nil
		}
		if !errors.Is(err, ErrHeld) {
			f.Close()
			return nil, err
		}
		if !waited {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for the lock of %s: %w", name, context.Cause(ctx))
		case <-time.After(again):
		}
	}
}

// Held reports whether the lock of a file is taken. It does not create the file.
func Held(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(take(f, unix.LOCK_SH|unix.LOCK_NB), ErrHeld)
}
