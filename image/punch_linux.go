package image

import (
	"os"

	"golang.org/x/sys/unix"
)

// punch frees the space of a part of a file, if the filesystem can.
func punch(f *os.File, offset, size int64) {
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, size)
}
