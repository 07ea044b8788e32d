//go:build !linux

package machine

import "io/fs"

// allocated returns the size of a file, in bytes.
func allocated(st fs.FileInfo) int64 { return st.Size() }
