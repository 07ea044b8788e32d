// Package atomicfile replaces files in one step: who reads one reads the old text or the
// new, whole, also when the writer dies in between.
package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
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
