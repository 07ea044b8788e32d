package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// ways are all methods of Place; each must work alone.
func ways() map[string]func(*os.Root, string, string) error {
	return map[string]func(*os.Root, string, string) error{"place": Place, "rename": renameFree, "link": linkFree,
		"reserve": reserveFree}
}

// A taken name keeps its file, whatever it is; a free one is given.
func TestPlace(t *testing.T) {
	for way, place := range ways() {
		for _, taken := range []string{"nothing", "file", "folder", "link", "dangling"} {
			t.Run(way+", "+taken, func(t *testing.T) {
				dir := t.TempDir()
				root, err := os.OpenRoot(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer root.Close()
				at := filepath.Join(dir, "name")
				tmp := filepath.Join(dir, "tmp")
				err = errors.Join(os.WriteFile(tmp, []byte("new"), 0o644), os.Chmod(tmp, 0o644))
				switch taken {
				case "file":
					err = errors.Join(err, os.WriteFile(at, []byte("mine"), 0o644))
				case "folder":
					err = errors.Join(err, os.Mkdir(at, 0o755))
				case "link":
					err = errors.Join(err, os.WriteFile(filepath.Join(dir, "target"), []byte("mine"), 0o644), os.Symlink("target", at))
				case "dangling":
					err = errors.Join(err, os.Symlink("../nowhere", at))
				}
				if err != nil {
					t.Fatal(err)
				}
				before, _ := os.Lstat(at)
				err = place(root, "tmp", "name")
				now, _ := os.Lstat(at)
				if taken != "nothing" {
					if !errors.Is(err, fs.ErrExist) || !os.SameFile(before, now) {
						t.Errorf("%v, and it was replaced: %v", err, !os.SameFile(before, now))
					}
					return
				}
				text, e := os.ReadFile(at)
				if list, _ := os.ReadDir(dir); err != nil || e != nil || string(text) != "new" || len(list) != 1 ||
					now.Mode() != 0o644 {
					t.Errorf("%v %q %v %v", err, text, e, list)
				}
			})
		}
	}
}

// A file that takes the name in the meantime is never replaced.
func TestPlaceRace(t *testing.T) {
	for way, place := range ways() {
		t.Run(way, func(t *testing.T) {
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			lost := ""
			for i := range 500 {
				name := strconv.Itoa(i)
				if err := os.WriteFile(filepath.Join(dir, "tmp"), []byte("new"), 0o644); err != nil {
					t.Fatal(err)
				}
				var other sync.WaitGroup
				mine := false
				other.Go(func() {
					f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
					if err != nil {
						return
					}
					mine = true
					_, _ = f.WriteString("mine")
					f.Close()
				})
				err := place(root, "tmp", name)
				other.Wait()
				text, _ := os.ReadFile(filepath.Join(dir, name))
				if want := map[bool]string{true: "mine", false: "new"}[mine]; string(text) != want ||
					mine != errors.Is(err, fs.ErrExist) {
					lost += fmt.Sprintf("%d: %q, want %q, %v; ", i, text, want, err)
				}
			}
			if lost != "" {
				t.Error(lost)
			}
		})
	}
}
