package mcp_test

import (
	"net"

	"golang.org/x/sys/unix"
)

// waitForEnd waits until the other end has closed a connection, and reads nothing.
func waitForEnd(c net.Conn) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 60_000)
	})
}
