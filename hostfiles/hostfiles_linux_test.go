package hostfiles

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// A pipe is never opened, so whoever waits to write into it goes on waiting, and a
// device does not notice. The kernel says what was opened (inotify(7)).
func TestAttackPipes(t *testing.T) {
	dir, ignoring := folder(t), folder(t)
	pipe := filepath.Join(dir, "pipe")
	links := folder(t, "link -> "+pipe)
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), syscall.Mkfifo(filepath.Join(ignoring, IgnoreFile), 0o600)); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	for _, name := range []string{pipe, filepath.Join(ignoring, IgnoreFile)} {
		if _, err := unix.InotifyAddWatch(watch, name, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
	}
	opened := func() string {
		if n, err := unix.Read(watch, make([]byte, 4096)); n > 0 || !errors.Is(err, unix.EAGAIN) {
			return "opened"
		}
		return "not opened"
	}
	for _, c := range []struct {
		name, host string
		dir        bool
		says       string
	}{
		{"a pipe as a file", pipe, false, "is a pipe: only regular files can be given"},
		{"a link to a pipe as a file", filepath.Join(links, "link"), false, "is a pipe: only regular files can be given"},
		{"a pipe as a folder", pipe, true, "is not a folder: --file brings files"},
		{"a pipe as a folder's ignore file", ignoring, true, `".unitaskignore": is a pipe where a regular file was wanted`},
		{"a pipe in a folder", dir, true, `"pipe" is a pipe, which can't be given: .unitaskignore can leave it out`},
	} {
		f, err := Find(c.host, c.dir)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, c.name+", found", "not opened", opened())
		var s Set
		err = s.Add(f, "/x", 1<<20)
		if err == nil || err.Error() != c.says {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
		attack.Check(t, c.name+", added", "not opened", opened())
		s.Close()
		f.Close()
	}
	f, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if opened() != "opened" {
		t.Error("the watch sees nothing")
	}
}
