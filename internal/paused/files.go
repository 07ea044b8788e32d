package paused

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/run"
)

// FilesName is the file in a pause's folder with the session's files.
const FilesName = "work.tar"

// Files opens the tar of the files that a session's folder had at the pause. Nothing has checked them;
// hostfiles.TakeFolder does. The error is a SessionError if no such session is paused. It is fs.ErrNotExist if the
// folder was empty, had more than MaxKeptFiles, or if a call might have changed it until the pause.
func Files(home, id string) (*os.File, error) {
	s := Open(home)
	if _, _, err := s.Read(id); errors.As(err, new(*run.SessionError)) {
		return nil, err
	}
	f, err := os.Open(filepath.Join(s.Folder(id), FilesName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, failure.Host("session", err)
	}
	return f, nil
}
