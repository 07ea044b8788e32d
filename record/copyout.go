package record

import (
	"fmt"

	"github.com/unitask/unitask/internal/export"
)

// OutFolder is a user's folder for copies of artifacts. It stays the folder that OpenOut opened, even if another
// one replaces it while code runs.
type OutFolder = export.Folder

// OpenOut opens a folder for artifacts. With replace, a copy replaces an existing file or link; it never follows
// a link. An error concerns the folder.
func OpenOut(dir string, replace bool) (*OutFolder, error) { return export.Open(dir, replace) }

// CopyArtifacts copies artifacts of a run into a user's folder. Untrusted code chose their names, so package
// export protects the folder's own files.
//
// It returns the artifacts that it did not copy, with reasons. The error is a failed write.
func (s *Store) CopyArtifacts(id string, list []Artifact, to *OutFolder) (left []Refusal, err error) {
	to.Begin()
	for _, a := range list {
		reason, err := s.copyArtifact(id, a.Path, to)
		if err != nil {
			return left, fmt.Errorf("copy %q: %w", a.Path, err)
		}
		if reason != "" {
			left = append(left, Refusal{a.Path, reason, reason != export.HeldBack && reason != export.Barred(a.Path)})
		}
	}
	return left, nil
}

func (s *Store) copyArtifact(id, name string, to *OutFolder) (reason string, err error) {
	from, err := s.OpenArtifact(id, name)
	if err != nil {
		return "", err
	}
	defer from.Close()
	return to.File(name, from)
}
