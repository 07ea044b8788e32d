// Package atomicfile replaces files in one step. A reader sees the complete old text or the complete new one, even if
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

// Write replaces or creates a file. The file is on the disk before any file created later. For data that must survive a
// power failure, use Fill with File.Sync.
func Write(name string, text []byte, perm fs.FileMode) error {
	return Fill(name, perm, func(f *os.File) error {
		_, err := f.Write(text)
		return err
	})
}

// Fill replaces a file with the text that fill writes. If fill fails, the file stays unchanged.
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

// SetAside renames a folder before its removal, to prefix and a random number in the same parent. So an interrupted
// removal leaves no incomplete folder under the old name. SetAside creates nothing, since a full disk may be the reason
// for the removal. Without room even for a name, the folder keeps its name. SetAside returns the folder's path.
func SetAside(dir, prefix string) (string, error) {
	to := filepath.Join(filepath.Dir(dir), prefix+strconv.FormatUint(rand.Uint64(), 36))
	err := rename(dir, to)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return dir, nil
	}
	return to, err
}
