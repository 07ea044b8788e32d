package localsocket

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// SameUser says that the other end of a Unix socket is a process of our own user.
func SameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if int(cred.Uid) != os.Getuid() {
		return fmt.Errorf("the peer is a process of user %d", cred.Uid)
	}
	return nil
}
