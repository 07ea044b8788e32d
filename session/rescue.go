package session

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/paused"
)

// A machine can only go on where QEMU and the image are as they were. So the files of a session's folder are kept
// beside it, if they are few: they can be had without it.

const (
	// MaxKeptFiles bounds the files of a session that are kept beside its pause, in bytes of their tar.
	MaxKeptFiles = 64 << 20

	keepPatience = 3 * time.Second
)

// packedFiles is a session's folder as a tar, as it was after so many calls.
type packedFiles struct {
	*os.File
	calls uint64
}

// packCalls are the calls that packFiles makes itself.
const packCalls = 2

// packFiles packs the session's folder; nil where nothing is in it, or too much, or a step is under way.
func (s *Session) packFiles(ctx context.Context) *packedFiles {
	s.mu.Lock()
	uses, calls := s.uses, s.calls
	s.mu.Unlock()
	if uses > 0 || s.Paused() || s.Kernel == oneProcess { // it takes a command
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keepPatience)
	defer cancel()
	if list, _, err := s.List(ctx, s.dir, 1); err != nil || len(list) == 0 {
		return nil
	}
	kept, err := s.of.nameless()
	if err != nil {
		return nil
	}
	if err := s.folderCommand(ctx, s.dir, supervisor.Exec{Args: []string{"/bin/tar", "-c", "-f", "-", "-C", s.dir, "."}, Stdout: &atMost{kept, MaxKeptFiles}}); err != nil {
		kept.Close()
		return nil
	}
	return &packedFiles{kept, calls + packCalls}
}

// keepFiles puts what packFiles gave beside a pause, which came after so many calls: none is better than one of before
// the last of them. Without room there it is not kept.
func (s *Session) keepFiles(files *packedFiles, calls uint64) {
	if files == nil || files.calls != calls {
		return
	}
	name := filepath.Join(paused.Open(s.of.Engine.Home).Folder(s.ID), paused.FilesName)
	_ = atomicfile.Fill(name, 0o600, func(f *os.File) error {
		if _, err := files.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err := io.Copy(f, files)
		return err
	})
}
