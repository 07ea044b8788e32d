package record

import (
	"fmt"

	"github.com/unitask/unitask/internal/export"
)

// OutFolder is a folder of the user's that artifacts are copied into. It stays the one that OpenOut opened, whatever
// takes its place while code runs.
type OutFolder = export.Folder

// OpenOut opens a folder for artifacts. With replace a copy replaces a file that exists, and a link, which is
// never followed. The error is that of the folder.
func OpenOut(dir string, replace bool) (*OutFolder, error) { return export.Open(dir, replace) }

// CopyArtifacts copies artifacts of a run into a folder of the user's. Their names are the untrusted code's
// choice, so the folder's own files are safe from them: package export has the rule.
//
// It returns what stayed in the record alone, and why. The error is that of a write.
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
