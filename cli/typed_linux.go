package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// dropTyped drops what was typed on a terminal and not read.
func dropTyped(tty *os.File) { _ = unix.IoctlSetInt(int(tty.Fd()), unix.TCFLSH, unix.TCIFLUSH) }
