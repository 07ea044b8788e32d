package image

import (
	"io/fs"
	"syscall"
)

// changeStamp returns when the inode was last changed, in ns; user code can't set it.
func changeStamp(st fs.FileInfo) int64 {
	sys := st.Sys().(*syscall.Stat_t)
	return sys.Ctim.Nano()
}

func allocated(st fs.FileInfo) int64 { return st.Sys().(*syscall.Stat_t).Blocks * 512 }

// links returns how many names a file has.
func links(st fs.FileInfo) int64 { return max(int64(st.Sys().(*syscall.Stat_t).Nlink), 1) }
