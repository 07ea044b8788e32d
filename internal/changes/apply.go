package changes

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/unitask/unitask/internal/audit"
)

// ConflictError lists files that changed since the diff, with reasons. None of the set's files was changed.
type ConflictError struct {
	ID    string
	Files []string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s: nothing was changed, since %d of its files are not as in its diff: %q", e.ID, len(e.Files),
		e.Files[:min(len(e.Files), 3)])
}

// Apply changes the files of a set, all or none. A set whose process ended meanwhile is completed. The error is a
// *ConflictError if a file is no longer what it was when the set was made.
func (s *Store) Apply(id string) (*Set, error) {
	return s.move(id, Applying, Applied, []State{Proposed, Applying, Undoing, Undone}, func(set *Set) []edit {
		var edits []edit
		for _, c := range set.Changes {
			edits = append(edits, edit{path: c.Path, from: c.Before, to: c.After, before: c.Before,
				text: s.text(set, c.After), mode: 0o644, was: c.Mode})
		}
		return edits
	})
}

// Undo gives the files of a set their earlier texts, all or none, and removes those that were new. The error is a
// *ConflictError if a file was changed after the set was applied. Of a set whose process ended meanwhile, it takes back
// what it can, and leaves such files as they are (Set.Left).
func (s *Store) Undo(id string) (*Set, error) {
	set, err := s.move(id, Undoing, Undone, []State{Applied, Applying, Undoing}, func(set *Set) []edit {
		var edits []edit
		for _, c := range set.Changes {
			if !c.Same {
				edits = append(edits, edit{path: c.Path, from: c.After, to: c.Before, before: c.Before,
					text: s.text(set, c.Before), mode: c.Mode, was: 0o777})
			}
		}
		return edits
	})
	if err != nil {
		return set, err
	}
	return set, removeEmpty(set.Dir, set.Folders)
}

// move changes the files from one state to another.
func (s *Store) move(id string, under, then State, in []State, edits func(*Set) []edit) (*Set, error) {
	lock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	set, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(in, set.State) {
		return set, fmt.Errorf("%s is %s: it %w", set.ID, set.State, ErrState)
	}
	was := set.State
	w, err := newWriter(set.Dir)
	if err != nil {
		return set, err
	}
	defer w.close()
	resumed := was == Applying || was == Undoing
	if err := w.look(set.ID, edits(set), resumed, resumed && under == Undoing); err != nil {
		return set, err
	}
	set.State = under
	s.remember(set, w, under == Applying && !resumed)
	if err = s.note(audit.ChangesStarted, set, nil); err == nil {
		err = s.save(set)
	}
	if err == nil {
		err = w.write(set.ID)
	}
	if err == nil && len(w.left) == 0 { // else a later undo can finish it
		set.State = then
	} else if err == nil {
		set.State = under
	} else if !errors.Is(err, errHalf) {
		set.State = was
	}
	if noted := s.note(audit.ChangesEnded, set, err); err == nil && noted != nil {
		s.lost(noted)
	}
	return set, errors.Join(err, s.save(set))
}

// remember notes in a set what its undo needs: new folders, and files that had the text already. fresh means that the
// set is applied from its beginning.
func (s *Store) remember(set *Set, w *writer, fresh bool) {
	if fresh {
		set.Folders = nil
	}
	for _, dir := range w.missing() {
		if !slices.Contains(set.Folders, dir) {
			set.Folders = append(set.Folders, dir)
		}
	}
	set.Left = w.left
	for i := range set.Changes {
		c := &set.Changes[i]
		if fresh {
			c.Same = slices.Contains(w.same, c.Path)
		} else if slices.ContainsFunc(w.steps, func(s *step) bool { return s.path == c.Path }) {
			c.Same = false
		}
	}
}

// lost reports that the audit log misses the end of a change, which has an entry of its start.
func (s *Store) lost(err error) {
	if s.log.OnError != nil {
		s.log.OnError(err)
	}
}

// badPath reports whether a path is not that of a file below a folder.
func badPath(name string) bool {
	return name == "." || !fs.ValidPath(name) || path.Clean(name) != name || len(name) > 4096
}
