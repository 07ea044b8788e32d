package socketpair

import "syscall"

// pair holds off every fork of this process until both ends are marked: macOS has no
// flag that does it in one step.
func pair() ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return fds, err
	}
	syscall.CloseOnExec(fds[0])
	syscall.CloseOnExec(fds[1])
	for _, fd := range fds {
		for _, option := range []int{syscall.SO_SNDBUF, syscall.SO_RCVBUF} {
			_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, option, bufferSize) // a small one works, too
		}
	}
	return fds, nil
}

// bufferSize is Linux's default. macOS's own, 8 KiB, holds five frames of a machine's network.
const bufferSize = 208 << 10
