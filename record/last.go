package record

import (
	"fmt"
	"slices"
)

// last returns the newest of some runs that is not a machine of another run's tools.
func (s *Store) last(ids []string) (string, error) {
	for _, id := range slices.Backward(ids) {
		if rec, err := s.Get(id); err != nil || rec.Via != ViaTools {
			return id, nil
		}
	}
	return "", fmt.Errorf("%w: nothing was run yet", ErrNotFound)
}
