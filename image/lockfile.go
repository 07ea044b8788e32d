package image

import (
	"context"

	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/home"
)

// lock acquires the store's lock of that name, which other processes respect. It waits until ctx ends. The kernel
// releases the lock when the process dies.
func (s *Store) lock(ctx context.Context, name string) (unlock func(), err error) {
	lock, err := filelock.Wait(ctx, home.Dir(s.home).Lock(name), func() {
		s.logf("waiting for another unitask that holds %s", name)
	})
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}
