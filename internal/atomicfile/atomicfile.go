// Package atomicfile replaces files in one step: a reader sees the complete old text or the complete new one, even if
// the writer dies in between. It replaces folders in one step, too.
package atomicfile

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Write replaces a file, or makes it. It is on the disk when a file that is made later
// is; Fill with File.Sync is for what must outlive a power cut.
func Write(name string, text []byte, perm fs.FileMode) error {
	return Fill(name, perm, func(f *os.File) error {
		_, err := f.Write(text)
		return err
	})
}

// Fill replaces a file by what fill writes; if that fails, by nothing.
func Fill(name string, perm fs.FileMode, fill func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*") // in the same file system, 0600
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil && perm != 0o600 {
		err = f.Chmod(perm)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// rename is a variable for tests, as if on a full disk.
var rename = os.Rename

// SetAside renames a folder that is to be removed to prefix and a random number, beside where it was, so that who is
// killed amid the removal leaves no half of it there. Nothing is made: a disk that is full is why folders are removed.
// Where there is no room even for a name, the folder stays where it is. It returns where the folder is then.
func SetAside(dir, prefix string) (string, error) {
	to := filepath.Join(filepath.Dir(dir), prefix+strconv.FormatUint(rand.Uint64(), 36))
	err := rename(dir, to)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return dir, nil
	}
	return to, err
}
