package unitask_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
)

// A home that others can change is refused.
func TestAttackHomes(t *testing.T) {
	dir := t.TempDir()
	made := func(mode os.FileMode, uid int) func(string) error {
		return func(at string) error {
			return errors.Join(os.Mkdir(at, 0o700), os.Chmod(at, mode), os.Chown(at, uid, -1))
		}
	}
	self := os.Getuid()
	for _, c := range []struct {
		name string
		make func(string) error
		want string
	}{
		{"mode 0700", made(0o700, self), "opened"},
		{"mode 0755", made(0o755, self), "opened"},
		{"not there yet", func(string) error { return nil }, "opened"},
		{"a link to one's own", func(at string) error {
			return errors.Join(os.Mkdir(at+".real", 0o700),
				os.Symlink(at+".real", at))
		}, "opened"},
		{"mode 0777", made(0o777, self), "refused: chmod go-w"},
		{"mode 0777 with the sticky bit", made(0o777|os.ModeSticky, self), "refused: chmod go-w"},
		{"mode 0702", made(0o702, self), "refused: chmod go-w"},
		{"mode 0770", made(0o770, self), "refused: chmod go-w"},
		{"a link to mode 0777", func(at string) error {
			return errors.Join(made(0o777, self)(at+".real"), os.Symlink(at+".real", at))
		}, "refused: chmod go-w"},
		{"a file", func(at string) error { return os.WriteFile(at, nil, 0o600) }, "refused: set UNITASK_HOME"},
		{"another user's", made(0o700, 65534), "refused: set UNITASK_HOME"},
		{"another user's, readable", made(0o755, 65534), "refused: set UNITASK_HOME"},
	} {
		if strings.HasPrefix(c.name, "another") && self != 0 {
			t.Logf("%s: only root can make one", c.name)
			continue
		}
		home := filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-"))
		if err := c.make(home); err != nil {
			t.Fatal(c.name, err)
		}
		rt, err := unitask.Open(unitask.Options{Home: home})
		got := "opened"
		var host *unitask.HostError
		switch {
		case err == nil:
			rt.Close()
		case !errors.As(err, &host) || !strings.Contains(err.Error(), home):
			got = err.Error()
		case strings.Contains(err.Error(), "chmod go-w "+home):
			got = "refused: chmod go-w"
		case strings.Contains(err.Error(), "set UNITASK_HOME"):
			got = "refused: set UNITASK_HOME"
		default:
			got = err.Error()
		}
		attack.Check(t, "a home: "+c.name, c.want, got)
		if got == "opened" { // and others can't create it any more
			if st, err := os.Stat(home); err != nil || st.Mode().Perm()&0o022 != 0 {
				t.Errorf("%s: %v %v", c.name, st, err)
			}
		}
	}
}
