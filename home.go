package unitask

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// checkHome refuses a home that somebody else could change: whoever can write there can
// exchange the kernel and the Node that runs are given, and read their records. A home
// that does not exist yet is made with mode 0700. Links are followed: what counts is the
// folder itself.
func checkHome(home string) error {
	st, err := os.Stat(home)
	if errors.Is(err, fs.ErrNotExist) {
		// Made at once, and by us: in a folder like /tmp others could make it later, as theirs.
		// Where that is not possible, whoever first needs it says so.
		made := errors.Join(os.MkdirAll(filepath.Dir(home), 0o755), os.Mkdir(home, 0o700))
		if made != nil && !errors.Is(made, fs.ErrExist) {
			return nil
		}
		st, err = os.Stat(home)
	}
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("home %s is not a folder: set UNITASK_HOME to one", home)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("home %s may be written by other users (mode %04o): chmod go-w %s", home, st.Mode().Perm(), home)
	}
	if owner, self := int(st.Sys().(*syscall.Stat_t).Uid), os.Geteuid(); owner != self {
		return fmt.Errorf("home %s belongs to another user (uid %d, this is uid %d): set UNITASK_HOME to a folder of your own", home, owner, self)
	}
	return nil
}
