package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
)

// A file beside code, or in its place, neither delays the command line nor fills its memory. Nobody asked for the
// package.json: a folder above may belong to anybody, and a repository may contain links.
func TestAttackCodeBeside(t *testing.T) {
	pipe := func(name string) error { return syscall.Mkfifo(name, 0o600) }
	large := func(name string) error {
		return errors.Join(os.WriteFile(name, []byte(`{"type":"module"}`), 0o600), os.Truncate(name, 1<<30))
	}
	for _, c := range []struct {
		name, at string
		make     func(string) error
		want     string
	}{
		{"a package.json that is a pipe", "package.json", pipe, "CommonJS"},
		{"a package.json above that is a pipe", "../package.json", pipe, "CommonJS"},
		{"a package.json that is a link to a pipe", "package.json",
			func(name string) error { return errors.Join(pipe(name+"x"), os.Symlink(name+"x", name)) }, "CommonJS"},
		{"a package.json that is a link to the endless", "package.json",
			func(name string) error { return os.Symlink("/dev/random", name) }, "CommonJS"},
		{"a package.json of a gigabyte", "package.json", large, "CommonJS"},
		{"a package.json of many small values", "package.json", func(name string) error {
			return os.WriteFile(name, []byte(`{"x":[`+strings.Repeat("{},", 300_000)+`0],"type":"module"}`), 0o600)
		}, "module"},
		{"a package.json that is a folder", "package.json", func(name string) error { return os.Mkdir(name, 0o700) },
			"CommonJS"},
		{"code that is a pipe", "code.js", pipe, "code.js is not a regular file"},
		{"code that is a link to a pipe", "code.js", func(name string) error {
			return errors.Join(pipe(name+"x"),
				os.Symlink(name+"x", name))
		}, "code.js is not a regular file"},
		{"code that is endless", "code.js", func(name string) error { return os.Symlink("/dev/random", name) },
			"code.js is not a regular file"},
	} {
		dir := filepath.Join(t.TempDir(), "project")
		code := filepath.Join(dir, "code.js")
		if err := errors.Join(os.Mkdir(dir, 0o700), c.make(filepath.Join(dir, c.at))); err != nil {
			t.Fatal(err)
		}
		if c.at != "code.js" {
			if err := os.WriteFile(code, []byte("1"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		said := make(chan string, 1)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		go func() {
			req := unitask.Request{}
			if err := fileCode(&req, code); err != nil {
				said <- strings.TrimPrefix(err.Error(), dir+"/")
				return
			}
			said <- map[string]string{"": "CommonJS", "module": "module"}[req.PackageType]
		}()
		got := "held up"
		select {
		case got = <-said:
			runtime.ReadMemStats(&after)
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 20 {
				got += fmt.Sprintf(" after %d MiB", took)
			}
		case <-time.After(10 * time.Second):
		}
		attack.Check(t, "the command line reads "+c.name, c.want, got)
	}
}
