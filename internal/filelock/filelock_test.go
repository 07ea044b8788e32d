package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "locks", "l")
	if Held(name) {
		t.Error("a lock that is not there is held")
	}
	if _, err := os.Stat(name); err == nil {
		t.Error("looking made it")
	}
	l, err := Try(name)
	if err != nil || !Held(name) {
		t.Fatal(err)
	}
	if _, err := Try(name); !errors.Is(err, ErrHeld) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	if _, err := Wait(ctx, name, func() { cancel(over) }); !errors.Is(err, over) {
		t.Error(err)
	}
	asked := 0
	again, err := Wait(t.Context(), name, func() { asked++; l.Unlock() })
	if err != nil || asked != 1 || !Held(name) {
		t.Fatal(err, asked)
	}
	l.Unlock() // twice, and not another process's
	if !Held(name) {
		t.Error("another's lock was dropped")
	}
	again.Unlock()
	last, err := Take(name)
	if err != nil {
		t.Fatal(err)
	}
	last.Unlock()
	if Held(name) {
		t.Error("it is held still")
	}
	var none *Lock
	none.Unlock()
}

// A link in a lock's place is not followed.
func TestLinkedLock(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("elsewhere", filepath.Join(dir, "l")); err != nil {
		t.Fatal(err)
	}
	if l, err := Try(filepath.Join(dir, "l")); err == nil {
		l.Unlock()
		t.Error("locked")
	}
	if _, err := os.Stat(filepath.Join(dir, "elsewhere")); err == nil {
		t.Error("a file was made where the link leads")
	}
}

// Many share an existing lock, and nobody gets it exclusively meanwhile; nothing is created.
func TestShare(t *testing.T) {
	dir := t.TempDir()
	for _, take := range []func(string) (*Lock, error){Share, Alone, TryAlone} {
		if _, err := take(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	one, err := Share(dir)
	if err != nil {
		t.Fatal(err)
	}
	two, err := Share(dir)
	if err != nil {
		t.Fatal(err)
	}
	one.Unlock()
	if _, err := TryAlone(dir); !errors.Is(err, ErrHeld) {
		t.Error(err)
	}
	two.Unlock()
	alone, err := Alone(dir)
	if err != nil || !Held(dir) {
		t.Fatal(err)
	}
	alone.Unlock()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Error(entries, err)
	}
}

// A Held does not prevent anybody from taking the lock.
func TestTryWhileOthersLook(t *testing.T) {
	name := filepath.Join(t.TempDir(), "l")
	l, err := Try(name)
	if err != nil {
		t.Fatal(err)
	}
	l.Unlock()
	done := make(chan struct{})
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					Held(name)
				}
			}
		})
	}
	for range 1000 {
		l, err := Try(name)
		if err != nil {
			t.Error(err)
			break
		}
		l.Unlock()
	}
	close(done)
	group.Wait()
}
