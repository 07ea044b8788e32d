package imagebuild

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// The wheels and packages of one version of a language are never locked for another one. A lock file of the current
// version is as before.
func TestLockOfVersion(t *testing.T) {
	for _, row := range []struct {
		from, release string
		found, taken  bool
	}{
		{"python", "", false, true}, {"data", "", false, true}, {"python@3.11", "bookworm", false, true},
		{"data@3.11", "bookworm", false, true}, {"python@3.11", "", false, false}, {"python", "bookworm", false, false},
		{"python", "sid", false, false}, {"python", "", true, false},
	} {
		b := &bundledBuild{language: language.OfImage(row.from), system: policy.Pip, specs: []string{"x"}}
		b.Builder = &Builder{Catalog: &catalog.Catalog{Tell: func(run.Event) {}}}
		b.env, b.arch = &imagefile.Environment{From: row.from}, image.AMD64
		if row.found {
			b.found = func() *catalog.Custom { return nil }
		}
		locks := lockFile{Builds: []lockedBuild{{Arch: image.AMD64, Release: row.release}}}
		if b.compare(&locks); (b.was != nil) != row.taken {
			t.Errorf("%+v: taken: %v", row, b.was != nil)
		}
		locks.set(b.now)
		text, err := json.Marshal(locks)
		if err != nil || strings.Contains(string(text), `"release"`) != strings.Contains(row.from, "@") {
			t.Errorf("%+v: %s %v", row, text, err)
		}
		b.found = nil
		if b.compare(&locks); b.was == nil {
			t.Errorf("%+v: its own lock file is not taken", row)
		}
	}
}

// A lock file from a repository, and output of a machine with foreign code, do not grow to many times their size in an
// error.
func TestAttackLockFile(t *testing.T) {
	deep := `{"a":` + strings.Repeat("[", 40) + "1" + strings.Repeat("]", 40) + "}"
	fine := `{"a":` + strings.Repeat("[", 31) + "1" + strings.Repeat("]", 31) + "}"
	whole := "sha256:" + strings.Repeat("0a", 32)
	for text, says := range map[string]string{
		`{"schema":1,"builds":[{"arch":"arm64","npm":` + deep + `}]}`:                          "brackets",
		`{"schema":1,"builds":[{"arch":"arm64","npm":[1]}]}`:                                   "no object",
		`{"schema":1,"builds":[{"layer":{"packages":[{"npm":` + deep + `}]}}]}`:                "brackets",
		`{"schema":1,"builds":[{"layer":{"packages":[{"npm":[1]}]}}]}`:                         "no object",
		`{"schema":1,"builds":[{}` + strings.Repeat(",{}", catalog.MaxLockValues/2) + `]}`:     "values",
		`{"schema":1,"builds":[{"layer":{"image":"corp/secret:1"}}]}`:                          `"corp/secret:1"`,
		`{"schema":1,"builds":[{"layer":{"image":"sha256:0123456789ab"}}]}`:                    `"sha256:0123456789ab"`,
		`{"schema":1,"builds":[{"layer":{"image":"` + whole + `0"}}]}`:                         "has the digest",
		`{"schema":1,"builds":[{"layer":{"files":"../../x"}}]}`:                                `"../../x"`,
		`{"schema":1,"builds":[{"layer":{"installed":"sha256:../x"}}]}`:                        `"sha256:../x"`,
		`{"schema":1,"builds":[{"layer":{"digest":"x"}}]}`:                                     `"x"`,
		`{"schema":1,"builds":[{"layer":{"packages":[{"digest":"x"}]}}]}`:                      `"x"`,
		`{"schema":1,"builds":[{"layer":{"image":"` + whole + `","digest":"` + whole + `"}}]}`: "",
		`{"schema":1,"builds":[{"arch":"arm64","npm":` + fine + `}]}`:                          "",
		`{"schema":1,"builds":[{"layer":{"packages":[{"system":"npm","npm":` + fine + `}]}}]}`: "",
	} {
		file := filepath.Join(t.TempDir(), "x"+catalog.LockFileEnds)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		locks, err := readLockFile(file)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%.100s: %v", text, err)
		}
		if err == nil && (len(locks.Builds) != 1 || locks.write(file) != nil) {
			t.Errorf("%.100s: %d builds", text, len(locks.Builds))
		}
	}
	for name, put := range map[string]func(file string) error{
		"a pipe": func(file string) error { return syscall.Mkfifo(file, 0o600) },
		"a link to a pipe": func(file string) error {
			return errors.Join(syscall.Mkfifo(file+"x", 0o600), os.Symlink(file+"x", file))
		},
		"the endless": func(file string) error { return os.Symlink("/dev/random", file) },
	} {
		file := filepath.Join(t.TempDir(), "x"+catalog.LockFileEnds)
		if err := put(file); err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() {
			_, err := readLockFile(file)
			read <- err
		}()
		got := "it waits"
		select {
		case err := <-read:
			if got = fmt.Sprint(err); strings.Contains(got, "is not a regular file") {
				got = "refused"
			}
		case <-time.After(5 * time.Second):
		}
		attack.Check(t, "a repository's lock file is "+name, "refused", got)
	}
	for line, says := range map[string]string{
		`{"packages":[],"npm":` + deep + `}`: "brackets",
		`{"packages":[],"npm":` + fine + `}`: "",
	} {
		err := new(lockedPackages).printed([]byte("unitask: lock " + line + "\n"))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%.100s: %v", line, err)
		}
	}
}
