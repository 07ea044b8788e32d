package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// folderOf makes a folder with a paused machine's description, identified by its time.
func folderOf(t *testing.T, path string, year int) {
	t.Helper()
	text := fmt.Sprintf(`{"version":%d,"at":"%d-01-01T00:00:00Z"}`, pauseVersion, year)
	if err := errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, pauseName), []byte(text),
		0o600)); err != nil {
		t.Fatal(err)
	}
}

// yearOf returns the year that folderOf wrote; 0 if the folder does not exist.
func yearOf(t *testing.T, path string) int {
	t.Helper()
	p, err := ReadPause(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Error(err)
	}
	return p.At.Year()
}

// A folder replaces another one on every file system, and restores it if the change can't be made durable.
func TestReplace(t *testing.T) {
	defer func(e func(a, b string) error, s func(string) error) { exchange, syncFolder = e, s }(exchange, syncFolder)
	for how, e := range map[string]func(a, b string) error{
		"in one step": renameExchange,
		"on NFS":      func(_, _ string) error { return syscall.EINVAL },
		"on FUSE":     func(_, _ string) error { return syscall.ENOSYS },
	} {
		for was, before := range map[string]int{"there was one": 2001, "there was none": 0} {
			for lasts, broken := range map[string]error{"it lasts": nil, "the disk fails": syscall.EIO} {
				t.Run(how+", "+was+", "+lasts, func(t *testing.T) {
					exchange, syncFolder = e, func(string) error { return broken }
					dir := t.TempDir()
					place, by := filepath.Join(dir, "paused"), filepath.Join(dir, filepath.Base(leftover("paused"))+"1")
					if before != 0 {
						folderOf(t, place, before)
					}
					folderOf(t, by, 2002)
					if err := settle(place, by); !errors.Is(err, broken) {
						t.Error(err)
					}
					want, behind := 2002, before
					if broken != nil {
						want, behind = before, 2002
					}
					if at, left := yearOf(t, place), yearOf(t, by); at != want || left != behind {
						t.Errorf("there is %d, and beside it %d; expected %d and %d", at, left, want, behind)
					}
					RemoveLeftovers(place)
					if at := yearOf(t, place); at != want {
						t.Errorf("behind it %d", at)
					}
					if left, err := os.ReadDir(dir); err != nil || len(left) > 1 || len(left) == 1 && left[0].Name() != "paused" {
						t.Errorf("%v %v", left, err)
					}
				})
			}
		}
	}
	exchange = func(_, _ string) error { return syscall.EINVAL }
	err := replace(filepath.Join(t.TempDir(), "paused"), "/nowhere/at/all")
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing to put there: %v", err)
	}
}

// A process that is killed while a folder was moved aside leaves it complete, wherever a reader looks first.
func TestReplaceKilled(t *testing.T) {
	defer func(e func(a, b string) error) { exchange = e }(exchange)
	exchange = func(_, _ string) error { return syscall.EINVAL }
	for name, c := range map[string]struct {
		placed bool // its replacement
		next   func(t *testing.T, place, by string)
		want   int
		left   []string
	}{
		"read": {false, func(t *testing.T, place, _ string) { yearOf(t, place) }, 2001,
			[]string{".paused.pausing-1", "paused"}},
		"swept": {false, func(_ *testing.T, place, _ string) { RemoveLeftovers(place) }, 2001,
			[]string{"paused"}},
		"replaced": {false, func(_ *testing.T, place, by string) { _ = replace(place, by) }, 2002,
			[]string{".paused.pausing-1", "paused"}},
		"read, behind the move": {true, func(t *testing.T, place, _ string) { yearOf(t, place) }, 2002,
			[]string{".paused.before", "paused"}},
		"swept, behind the move": {true, func(_ *testing.T, place, _ string) { RemoveLeftovers(place) }, 2002,
			[]string{"paused"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			place, by := filepath.Join(dir, "paused"), filepath.Join(dir, leftover("paused")+"1")
			folderOf(t, aside(place), 2001)
			if folderOf(t, by, 2002); c.placed {
				if err := os.Rename(by, place); err != nil {
					t.Fatal(err)
				}
			}
			c.next(t, place, by)
			if at := yearOf(t, place); at != c.want {
				t.Errorf("there is %d", at)
			}
			entries, err := os.ReadDir(dir)
			var left []string
			for _, e := range entries {
				left = append(left, e.Name())
			}
			if err != nil || !slices.Equal(left, c.left) {
				t.Errorf("%q %v", left, err)
			}
		})
	}
	for name, want := range map[string]string{".01x.before": "01x", "01x.before": "", ".before": "", ".01x.pausing-1": "",
		".01x": ""} {
		if folder, ok := AsideOf(name); ok != (want != "") || ok && folder != want {
			t.Errorf("%s: %q %t", name, folder, ok)
		}
	}
}

// A folder that was moved aside and can't be restored now is not lost: nothing removes it, and it is there when the
// disk works.
func TestRestoreFails(t *testing.T) {
	defer func(e func(a, b string) error) { exchange, rename = e, os.Rename }(exchange)
	exchange = func(_, _ string) error { return syscall.EINVAL }
	dir := t.TempDir()
	place, by := filepath.Join(dir, "paused"), filepath.Join(dir, leftover("paused")+"1")
	folderOf(t, aside(place), 2001)
	folderOf(t, by, 2002)
	rename = func(from, to string) error {
		if from == aside(place) {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.EIO}
		}
		return os.Rename(from, to)
	}
	if _, err := ReadPause(place); !errors.Is(err, syscall.EIO) {
		t.Errorf("read: %v", err)
	}
	if err := replace(place, by); !errors.Is(err, syscall.EIO) {
		t.Errorf("replace: %v", err)
	}
	RemoveLeftovers(place)
	rename = os.Rename
	if at := yearOf(t, place); at != 2001 {
		t.Errorf("there is %d", at)
	}
	long := filepath.Join(dir, strings.Repeat("x", 250)) // next to which no entry fits
	if _, err := ReadPause(long); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a long name: %v", err)
	}
}

// A reader between the two moves restores the folder that was moved aside; it is replaced all the same.
func TestReplaceRead(t *testing.T) {
	defer func(e func(a, b string) error) { exchange, rename = e, os.Rename }(exchange)
	exchange = func(_, _ string) error { return syscall.EINVAL }
	for name, reads := range map[string]int{"once": 1, "ever again": 1000} {
		dir := t.TempDir()
		place, by := filepath.Join(dir, "paused"), filepath.Join(dir, leftover("paused")+"1")
		folderOf(t, place, 2001)
		folderOf(t, by, 2002)
		left := reads
		rename = func(from, to string) error {
			err := os.Rename(from, to)
			if from == place && left > 0 {
				left--
				yearOf(t, place)
			}
			return err
		}
		err := replace(place, by)
		rename = os.Rename
		want := 2002
		if reads > replaceTries {
			want = 2001
		}
		if at := yearOf(t, place); at != want || (err == nil) != (want == 2002) || yearOf(t, by) != 4003-want {
			t.Errorf("%s: there is %d, %v", name, at, err)
		}
	}
}

// An ended machine does not come back from where it was moved to.
func TestRemovePause(t *testing.T) {
	for name, names := range map[string][]string{"aside only": {".paused.before"},
		"both": {"paused", ".paused.before", ".paused.pausing-1"}, "none": nil} {
		dir := t.TempDir()
		for i, n := range names {
			folderOf(t, filepath.Join(dir, n), 2001+i)
		}
		place := filepath.Join(dir, "paused")
		if err := RemovePause(place); err != nil || yearOf(t, place) != 0 {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%s: left %v %v", name, left, err)
		}
	}
	// The same holds if the machine can't be restored before.
	defer func() { rename = os.Rename }()
	rename = func(_, _ string) error { return syscall.EIO }
	place := filepath.Join(t.TempDir(), "paused")
	folderOf(t, aside(place), 2001)
	err := RemovePause(place)
	rename = os.Rename
	if at := yearOf(t, place); err != nil || at != 0 {
		t.Errorf("there is %d, %v", at, err)
	}
}
