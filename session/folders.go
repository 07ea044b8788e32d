package session

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/export"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/hostfiles"
)

// LeftOut is an entry that was not copied to the host, with the reason.
type LeftOut = export.Left

// folderTimeout bounds the time to copy a folder into a machine or out of it.
const folderTimeout = 10 * time.Minute

// Download copies a folder of the session's machine to a new name on the host: files, folders, and links that lead to
// its contents. The copy is complete or does not exist. A folder has at most hostfiles.MaxFolderBytes and
// MaxFolderEntries; the error about one that is refused is a *hostfiles.FolderError. No copied file is executable.
// Download leaves out names that begin with a dot or look like another name, and lists them in left.
func (s *Session) Download(ctx context.Context, name, dir string) (left []LeftOut, err error) {
	return hostfiles.TakeFolder(dir, func(w io.Writer) error { return s.Pack(ctx, name, w) })
}

// Upload copies a folder of the host to a new name in the session's machine, with the limits of Download.
func (s *Session) Upload(ctx context.Context, dir, name string) error {
	return hostfiles.SendFolder(dir, func(r io.Reader) error { return s.Unpack(ctx, name, r) })
}

// Pack writes a folder of the session's machine as a tar. Untrusted code made the contents: read it with
// hostfiles.TakeFolder.
func (s *Session) Pack(ctx context.Context, name string, to io.Writer) error {
	list, _, err := s.List(ctx, name, 0)
	if err != nil {
		return err
	}
	if len(list) != 1 || !list[0].Mode.IsDir() {
		return fmt.Errorf("copy %s: %w", name, syscall.ENOTDIR)
	}
	kept, err := s.manager.anonymousFile() // the reader may be slow, and the session should not wait
	if err != nil {
		return err
	}
	defer kept.Close()
	out := &atMost{kept, hostfiles.MaxFolderArchive}
	if err := s.folderCommand(
		ctx,
		name,
		supervisor.Exec{Args: []string{"/bin/tar", "-c", "-f", "-", "-C", s.at(name), "."}, Stdout: out},
	); err != nil {
		return err
	}
	if _, err = kept.Seek(0, io.SeekStart); err == nil {
		_, err = io.Copy(to, kept)
	}
	return err
}

// Send writes the tar of a folder of the session's machine after it has checked it: files, folders, and links that stay
// inside. It has the limits of Download. The entry hostfiles.FolderWhole comes last, and is missing if the tar was cut.
func (s *Session) Send(ctx context.Context, name string, to io.Writer) error {
	way, err := s.manager.way()
	if err != nil {
		return err
	}
	return hostfiles.PassFolder(way, func(w io.Writer) error { return s.Pack(ctx, name, w) },
		func(r io.Reader) error {
			_, err := io.Copy(to, r)
			return err
		})
}

// Receive creates a folder in the session's machine from any tar, which it checks first, with the limits of Download.
// Nothing is there after an error.
func (s *Session) Receive(ctx context.Context, name string, from io.Reader) error {
	way, err := s.manager.way()
	if err != nil {
		return err
	}
	return hostfiles.PassFolder(way, func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	}, func(r io.Reader) error { return s.Unpack(ctx, name, r) })
}

// way returns the folder for data in transit from one machine to another.
func (m *Manager) way() (string, error) {
	dir := home.Dir(m.Engine.Home).Sessions()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", failure.Host("session", err)
	}
	return dir, nil
}

// anonymousFile returns a new file in that folder without a name, which disappears when it is closed.
func (m *Manager) anonymousFile() (*os.File, error) {
	dir, err := m.way()
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, ".way-*")
	if err != nil {
		return nil, failure.Host("session", err)
	}
	_ = os.Remove(f.Name())
	return f, nil
}

// Unpack creates a folder in the session's machine from the output of hostfiles.SendFolder.
func (s *Session) Unpack(ctx context.Context, name string, from io.Reader) error {
	at := s.at(name)
	tmp := path.Join(path.Dir(at), ".unitask-"+rand.Text())
	// A folder that was cut off has no FolderWhole.
	err := s.folderCommand(ctx, name, supervisor.Exec{Args: []string{"/bin/sh", "-c", `set -e
if [ -e "$1" ] || [ -L "$1" ]; then echo "is there already: give a name that is not taken" >&2; exit 1; fi
mkdir -p "${1%/*}/"
mkdir "$2"
tar -x -f - -C "$2"
if ! [ -e "$2/$4" ]; then echo "was cut on its way" >&2; exit 1; fi
mv "$2/$3" "$1"
rm -r "$2"`, "sh", at, tmp, hostfiles.FolderName, hostfiles.FolderWhole}, Stdin: from})
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fileTimeout)
		defer cancel()
		_ = s.Remove(ctx, tmp)
	}
	return err
}

// folderCommand runs a command that copies folders, as the code's user.
func (s *Session) folderCommand(ctx context.Context, name string, e supervisor.Exec) error {
	if err := s.hasCommands("folders that are copied, which takes commands,"); err != nil {
		return err
	}
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := s.clocks.start(ctx, folderTimeout)
	defer cancel()
	var said bytes.Buffer
	e.Env, e.Dir = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}, cmp.Or(e.Dir, "/")
	e.Stderr = &bounded.Head{To: &said, Left: 1000}
	cmd, err := s.client.Start(ctx, e)
	if err != nil {
		return err
	}
	end, err := cmd.Wait(ctx)
	switch {
	case err != nil:
		return s.copies(name, err)
	case end.Code != 0 || end.Signal != 0:
		why := strings.TrimSpace(strings.ToValidUTF8(said.String(), "\ufffd"))
		return fmt.Errorf(
			"copy %s: %s",
			name,
			cmp.Or(s.redactor.String(why), fmt.Sprintf("tar ended with code %d, signal %d", end.Code, end.Signal)),
		)
	}
	return nil
}

// atMost writes up to a number of bytes, and then fails.
type atMost struct {
	to   io.Writer
	left int64
}

func (w *atMost) Write(p []byte) (int, error) {
	if w.left -= int64(len(p)); w.left < 0 {
		return 0, &hostfiles.FolderError{
			Name:   "the folder",
			Reason: fmt.Sprintf("has more than %d bytes: copy parts of it", int64(hostfiles.MaxFolderBytes)),
		}
	}
	return w.to.Write(p)
}
