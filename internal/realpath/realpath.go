// Package realpath returns the host's own name of a file: links resolved, and each folder's name as it is stored. On a
// disk that ignores case in names (macOS's, by default), one folder has many names. Decisions by name must use this
// one.
package realpath

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

// Of returns where a path leads. It is absolute if the path is.
func Of(name string) (string, error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return "", err
	}
	return Stored(real), nil
}

// Stored returns a path without links, with the names as they are stored. A part that does not exist stays unchanged.
func Stored(real string) string { return disk{os.Lstat, names}.stored(real) }

// disk provides lookups of names.
type disk struct {
	lstat func(path string) (fs.FileInfo, error)
	names func(dir string) []string // of the entries of a folder
}

func names(dir string) []string {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	list, _ := f.Readdirnames(-1)
	return list
}

func (d disk) stored(real string) string {
	if !filepath.IsAbs(real) || filepath.Clean(real) != real {
		return real
	}
	at := "/"
	for name := range strings.SplitSeq(real[1:], "/") {
		at = filepath.Join(at, d.name(at, name))
	}
	return at
}

// name returns the stored name of the file that a folder finds under a name.
func (d disk) name(dir, name string) string {
	other := swapCase(name)
	if other == name {
		return name
	}
	file, err := d.lstat(filepath.Join(dir, name))
	if err != nil {
		return name
	}
	if same, err := d.lstat(filepath.Join(dir, other)); err != nil || !os.SameFile(file, same) {
		return name // the folder distinguishes the two
	}
	stored := name
	for _, n := range d.names(dir) {
		if n == name {
			return name // it has both
		}
		if st, err := d.lstat(filepath.Join(dir, n)); strings.EqualFold(n, name) && err == nil && os.SameFile(file, st) {
			stored = n
		}
	}
	return stored
}

// swapCase returns the name with the case of each letter swapped.
func swapCase(name string) string {
	return strings.Map(func(r rune) rune {
		if l := unicode.ToLower(r); l != r {
			return l
		}
		return unicode.ToUpper(r)
	}, name)
}
