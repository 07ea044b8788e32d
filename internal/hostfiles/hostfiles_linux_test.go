package hostfiles

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// A pipe is never opened, so its writer keeps waiting, and a device is not touched. The kernel reports what was opened
// (inotify(7)).
func TestAttackPipes(t *testing.T) {
	dir, ignoring := folder(t), folder(t)
	pipe := filepath.Join(dir, "pipe")
	links := folder(t, "link -> "+pipe)
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600),
		syscall.Mkfifo(filepath.Join(ignoring, IgnoreFile), 0o600)); err != nil {
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

// A file that is replaced by a pipe, between the check and its opening, is not read. With a silent writer, the read
// would never end.
func TestAttackExchangedForAPipe(t *testing.T) {
	dir := t.TempDir()
	file, pipe, at := filepath.Join(dir, "file"), filepath.Join(dir, "pipe"), filepath.Join(dir, "at")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), syscall.Mkfifo(pipe, 0o600), os.Link(file, at)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			for _, from := range []string{pipe, file} {
				select {
				case <-stop:
					return
				default:
				}
				if err := unix.Link(from, filepath.Join(dir, "next")); err != nil {
					t.Error(err)
					return
				}
				if err := os.Rename(filepath.Join(dir, "next"), at); err != nil {
					t.Error(err)
					return
				}
				_ = os.Remove(filepath.Join(dir, "next")) // a rename to the same file leaves it
			}
		}
	})
	got := "a file"
	for range 20_000 {
		f, err := openRegular(root, "at")
		if err != nil {
			continue
		}
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			got = "a pipe"
		}
		f.Close()
	}
	close(stop)
	group.Wait()
	attack.Check(t, "a file that is exchanged for a pipe", "a file", got)
}
