// Package disuse says what of a store may go because nobody has used it, and counts what that frees. It removes
// nothing; the stores of images, templates, packages and compiled programs call it.
package disuse

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"time"
)

// Rule says what a prune removes of what no run needs.
type Rule struct {
	Since  time.Time // what was used later stays; the zero time spares nothing
	DryRun bool      // count, and remove nothing
}

// Spares reports whether something that was last used at a time stays.
func (r Rule) Spares(used time.Time) bool { return !r.Since.IsZero() && used.After(r.Since) }

// Freed counts what was removed, or with Rule.DryRun what would be.
type Freed struct {
	Count int   `json:"count"`
	Bytes int64 `json:"bytes"`
}

// Add counts one more.
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
