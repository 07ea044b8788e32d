package machine

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/unitask/unitask/internal/disuse"
)

// PruneUnused removes the templates that the rule does not spare, and leftovers of a killed maker. Machines that were
// cloned from a template have its files open.
func (s *Templates) PruneUnused(rule disuse.Rule) (freed disuse.Freed, err error) {
	list, left, err := s.aged()
	if err != nil {
		return freed, err
	}
	var names []string
	for _, t := range list {
		if !rule.Spares(t.used) {
			names = append(names, t.name)
		}
	}
	var errs []error
	for _, name := range append(names, left...) {
		dir := filepath.Join(s.dir, name)
		size := disuse.Size(dir)
		if !rule.DryRun {
			if err := os.RemoveAll(dir); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		freed.Add(size)
	}
	return freed, errors.Join(errs...)
}
