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

// A machine can only resume with the same QEMU and image. So unitask also saves the files of a small session
// folder beside the pause, where they can be read without the machine.

const (
	// MaxKeptFiles bounds the files saved beside a session's pause, in bytes of their tar.
	MaxKeptFiles = 64 << 20

	keepPatience = 3 * time.Second
)

// packedFiles is a session's folder as a tar, and the number of calls before it was packed.
type packedFiles struct {
	*os.File
	calls uint64
}

// packCalls is the number of calls that packFiles makes itself.
const packCalls = 2

// packFiles packs the session's folder; nil if it is empty or too large, or a step is in progress.
func (s *Session) packFiles(ctx context.Context) *packedFiles {
	uses, calls := s.usage.now()
	if uses > 0 || s.Paused() || s.Kernel == oneProcess || s.dir == "/" { // packing needs a command, and a small folder
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keepPatience)
	defer cancel()
	if list, _, err := s.List(ctx, s.dir, 1); err != nil || len(list) == 0 {
		return nil
	}
	kept, err := s.manager.anonymousFile()
	if err != nil {
		return nil
	}
	if err := s.folderCommand(
		ctx,
		s.dir,
		supervisor.Exec{
			Args:   []string{"/bin/tar", "-c", "-f", "-", "-C", s.dir, "."},
			Stdout: &atMost{kept, MaxKeptFiles},
		},
	); err != nil {
		kept.Close()
		return nil
	}
	return &packedFiles{kept, calls + packCalls}
}

// keepFiles saves the result of packFiles beside a pause; calls is the number of calls before the pause. If a
// call came in between, it saves nothing, because no copy is better than an outdated one. Without room on the
// disk it also saves nothing.
func (s *Session) keepFiles(files *packedFiles, calls uint64) {
	if files == nil || files.calls != calls {
		return
	}
	name := filepath.Join(paused.Open(s.manager.Engine.Home).Folder(s.ID), paused.FilesName)
	_ = atomicfile.Fill(name, 0o600, func(f *os.File) error {
		if _, err := files.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err := io.Copy(f, files)
		return err
	})
}
