package socketpair

import "syscall"

// pair blocks every fork of this process until both ends are marked, because macOS has no flag that marks them in one
// step.
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
			_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, option, bufferSize) // a smaller buffer works, too
		}
	}
	return fds, nil
}

// bufferSize is Linux's default. macOS's own, 8 KiB, holds five frames of a machine's network.
const bufferSize = 208 << 10
