package image

import (
	"context"
	"path/filepath"

	"github.com/unitask/unitask/internal/filelock"
)

// lock takes the store's lock of that name, which other processes respect, and
// waits for it until ctx ends. The kernel drops it when the process dies.
func (s *Store) lock(ctx context.Context, name string) (unlock func(), err error) {
	lock, err := filelock.Wait(ctx, filepath.Join(s.home, "locks", name), func() {
		s.logf("waiting for another unitask that holds %s", name)
	})
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}
