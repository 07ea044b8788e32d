package unitask_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/hostfiles"
)

// Folders go into a machine and come back, with either tar. A folder that can't be copied leaves nothing on either
// side.
func TestSessionFolders(t *testing.T) {
	t.Parallel()
	needVM(t)
	rt := sessionRuntime(t)
	images := []string{"shell"}
	if long() {
		images = append(images, "python") // it has busybox's tar
	}
	for _, image := range images {
		t.Run(image, func(t *testing.T) {
			s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: image}})
			sh := func(code string) string {
				t.Helper()
				res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", code}})
				if err != nil || res.ExitCode != 0 {
					t.Fatalf("%s: %+v %v", code, res, err)
				}
				return string(res.Stdout)
			}
			from, out := t.TempDir(), t.TempDir()
			if err := errors.Join(os.MkdirAll(filepath.Join(from, "a/b"), 0o755),
				os.WriteFile(filepath.Join(from, "a/b/run"), []byte("#!/bin/sh\necho ran\n"), 0o755),
				os.WriteFile(filepath.Join(from, "größe"), []byte(strings.Repeat("x", 300_000)), 0o600),
				os.Symlink("a/b", filepath.Join(from, "down"))); err != nil {
				t.Fatal(err)
			}
			if err := s.Upload(t.Context(), from, "new/in"); err != nil {
				t.Fatal(err)
			}
			if got := sh("new/in/down/run; wc -c < new/in/größe; ls -A new"); got != "ran\n300000\nin\n" {
				t.Errorf("%q", got)
			}
			if list, more, err := s.List(t.Context(), "new/in/größe", 1); err != nil || more || len(list) != 1 ||
				list[0].Size != 300_000 || list[0].Path != "/work/new/in/größe" {
				t.Errorf("a file alone: %v %v %v", list, more, err)
			}
			if err := s.Upload(t.Context(), from, "new/in"); err == nil || !strings.Contains(err.Error(), "is there already") {
				t.Errorf("twice: %v", err)
			}
			if _, err := s.Download(t.Context(), "new/in", filepath.Join(out, "back")); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(out, "back/down/run"))
			big, err2 := os.Stat(filepath.Join(out, "back/größe"))
			if err != nil || err2 != nil || string(text) != "#!/bin/sh\necho ran\n" || big.Size() != 300_000 {
				t.Errorf("%q %v %v %v", text, big, err, err2)
			}
			if _, err := s.Download(t.Context(), "nothing", filepath.Join(out, "x")); !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			if _, err := s.Download(t.Context(), "new/in/größe", filepath.Join(out, "x")); !errors.Is(err, syscall.ENOTDIR) {
				t.Error(err)
			}
			for name, code := range map[string]string{"a link out": "ln -s /etc/passwd d/x",
				"a link upwards": "ln -s ../new d/x", "a pipe": "mkfifo d/x", "no right": "mkdir -m 0 d/x"} {
				sh("chmod -R u+rwx d 2>/dev/null; rm -rf d; mkdir d; " + code)
				if _, err := s.Download(t.Context(), "d", filepath.Join(out, "x")); err == nil ||
					name != "no right" && !errors.As(err, new(*hostfiles.FolderError)) {
					t.Errorf("%s: %v", name, err)
				}
			}
			// An endless one is cancelled, and the session continues.
			sh("chmod -R u+rwx d; rm -rf d; mkdir d; truncate -s 100G d/x")
			short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if _, err := s.Download(short, "d", filepath.Join(out, "x")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a file without end: %v", err)
			}
			// A truncated folder leaves nothing.
			cutUpload(t, from, s, sh, out)
		})
	}
}

// cutUpload checks that a folder truncated on its way leaves nothing.
func cutUpload(t *testing.T, from string, s *unitask.Session, sh func(code string) string, out string) {
	t.Helper()
	err := hostfiles.SendFolder(from, func(r io.Reader) error {
		return s.Unpack(t.Context(), "cut",
			io.LimitReader(r, 100_000))
	})
	if err == nil {
		t.Error("a folder that was cut")
	}
	if err := syscall.Mkfifo(filepath.Join(from, "z"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Upload(t.Context(), from, "cut"); !errors.As(err, new(*hostfiles.FolderError)) {
		t.Errorf("a pipe: %v", err)
	}
	if got := sh("ls -A | grep -c 'cut\\|unitask' || true"); got != "0\n" {
		t.Errorf("%s are left in the machine", got)
	}
	if list, err := os.ReadDir(out); err != nil || len(list) != 1 {
		t.Errorf("left on the host: %v %v", list, err)
	}
}
