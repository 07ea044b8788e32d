package localsocket

import (
	"fmt"
	"net"
	"os"
)

// SameUser checks that the other end of a Unix socket is a process of our own user.
func SameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var uid uint32
	var failed error
	if err := raw.Control(func(fd uintptr) { uid, failed = peer(int(fd)) }); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if int(uid) != os.Getuid() {
		return fmt.Errorf("the peer is a process of user %d", uid)
	}
	return nil
}
