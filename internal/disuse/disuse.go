// Package disuse decides which entries of a store may be removed because nobody has used them, and counts the bytes
// that this frees. It removes nothing. The stores of images, templates, packages and compiled programs call it.
package disuse

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"time"
)

// Rule says which unneeded entries a prune removes.
type Rule struct {
	Since  time.Time // entries used later stay; the zero time spares none
	DryRun bool      // count, and remove nothing
}

// Spares reports whether an entry with the given time of last use stays.
func (r Rule) Spares(used time.Time) bool { return !r.Since.IsZero() && used.After(r.Since) }

// Freed counts removed entries and bytes; with Rule.DryRun, those that would be removed.
type Freed struct {
	Count int   `json:"count"`
	Bytes int64 `json:"bytes"`
}

// Add counts one more entry.
func (f *Freed) Add(bytes int64) {
	f.Count++
	f.Bytes += bytes
}

// Size returns the bytes that a file or a folder takes on the disk. A file with several names counts in equal parts.
// What can't be read counts as nothing.
func Size(root string) (bytes int64) {
	_ = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil && !d.IsDir() {
			st := info.Sys().(*syscall.Stat_t)
			bytes += st.Blocks * 512 / max(int64(st.Nlink), 1)
		}
		return nil
	})
	return bytes
}
