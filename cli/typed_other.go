//go:build !linux

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// fread is FREAD of <sys/fcntl.h>.
const fread = 1

// dropTyped drops what was typed on a terminal and not read.
func dropTyped(tty *os.File) {
	_ = unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCFLUSH, fread)
}
