package export

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// A file exists completely or not at all, and the old one stays if the new one can't be made.
func TestTakeFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "out")
	cut := errors.New("cut")
	for _, c := range []struct {
		err  error
		want []string
	}{{cut, nil}, {nil, []string{"out"}}, {cut, []string{"out"}}} {
		err := TakeFile(name, func(w io.Writer) error {
			_, _ = io.WriteString(w, "text")
			return c.err
		})
		if !errors.Is(err, c.err) {
			t.Errorf("%v", err)
		}
		if got := names(t, dir); !slices.Equal(got, c.want) {
			t.Errorf("after %v: %q", c.err, got)
		}
	}
	if text, err := os.ReadFile(name); string(text) != "text" {
		t.Errorf("%q %v", text, err)
	}
	if err := TakeFile(filepath.Join(dir, "none", "out"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func rootOf(t *testing.T, dir string) *os.Root {
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		list = append(list, d.Name())
	}
	return list
}

// The next copy into the folder removes a killed copy's leftovers. Files in progress, new files, and other entries
// stay.
func TestSweep(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	long := time.Now().Add(-2 * partialAge)
	old := func(name string) string {
		name = filepath.Join(dir, name)
		if err := os.Chtimes(name, long, long); err != nil {
			t.Fatal(err)
		}
		return name
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(other, "kept"), nil, 0o600))
	must(os.MkdirAll(filepath.Join(dir, PartialName+"folder/deep"), 0o700))
	must(os.Symlink(other, filepath.Join(dir, PartialName+"folder/link")))
	must(os.WriteFile(filepath.Join(dir, PartialName+"file"), nil, 0o600))
	must(os.WriteFile(filepath.Join(dir, PartialName+"new"), nil, 0o600))
	must(os.Symlink(other, filepath.Join(dir, PartialName+"link")))
	must(os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	for _, name := range []string{PartialName + "folder", PartialName + "file", "mine"} {
		old(name)
	}
	busy, lock, err := PartialFolder(dir) // this sweeps
	must(err)
	old(filepath.Base(busy))
	want := []string{filepath.Base(busy), PartialName + "link", PartialName + "new", "mine"}
	slices.Sort(want)
	for _, when := range []string{"once", "twice"} {
		if got := names(t, dir); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		sweep(rootOf(t, dir))
	}
	lock.Close() // as by a kill
	must(TakeFile(filepath.Join(dir, "mine"), func(io.Writer) error { return nil }))
	if _, err := os.Lstat(busy); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was left is still there: %v", err)
	}
	if got := names(t, other); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("another folder: %q", got)
	}
}

// A read-only folder is swept as well, also by an ordinary user, and by several at once. No link in it is followed.
func TestAttackSweep(t *testing.T) {
	const as = "UNITASK_TEST_SWEEP"
	if dir := os.Getenv(as); dir != "" {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { sweep(rootOf(t, dir)) })
		}
		all.Wait()
		return
	}
	top, err := os.MkdirTemp("/tmp", "unitask-sweep-*") // only root can enter t.TempDir's
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	dir, kept := filepath.Join(top, "dir"), filepath.Join(top, "kept")
	left := filepath.Join(dir, PartialName+"left")
	uid := os.Getuid()
	if uid == 0 {
		uid = 65534
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(left, "deep/er"), 0o755))
	must(errors.Join(os.Mkdir(kept, 0o555), os.Chmod(kept, 0o555)))
	must(os.WriteFile(filepath.Join(left, "deep/er/file"), nil, 0o400))
	must(os.Symlink(kept, filepath.Join(left, "deep/link")))
	must(filepath.WalkDir(top, func(name string, _ fs.DirEntry, _ error) error { return os.Lchown(name, uid, -1) }))
	must(os.Chmod(filepath.Join(left, "deep/er"), 0o555))
	must(os.Chmod(filepath.Join(left, "deep"), 0o000))
	long := time.Now().Add(-2 * partialAge)
	must(os.Chtimes(left, long, long))
	program := filepath.Join(top, "test") // only root may be able to read ours
	must(copyFile(os.Args[0], program))
	cmd := exec.Command(program, "-test.run", "^TestAttackSweep$")
	cmd.Env = []string{as + "=" + dir}
	cmd.Dir = "/"
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	st, err := os.Stat(kept)
	must(err)
	attack.Check(t, "a leftover with folders that can't be written to", "swept, and what a link leads to is -r-xr-xr-x",
		fmt.Sprintf("%s, and what a link leads to is %v",
			map[bool]string{true: "swept", false: "there"}[len(names(t, dir)) == 0], st.Mode().Perm()))
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(to, text, 0o755), os.Chmod(to, 0o755))
}
