package jail

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receive reads the reports of a stage until it has executed its program, and the
// listener of its filter if it sends one.
func receive(status *os.File) (reports []byte, listener *os.File, err error) {
	buf, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	for len(reports) < maxReports {
		n, rn, _, _, err := unix.Recvmsg(int(status.Fd()), buf, rights, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return reports, listener, err
		}
		reports = append(reports, buf[:n]...)
		messages, err := unix.ParseSocketControlMessage(rights[:rn])
		if err != nil {
			continue
		}
		for _, m := range messages {
			fds, err := unix.ParseUnixRights(&m)
			if err != nil {
				continue
			}
			for _, fd := range fds {
				if listener != nil {
					listener.Close()
				}
				_ = unix.SetNonblock(fd, true) // so that the runtime waits for it, and no thread of ours
				listener = os.NewFile(uintptr(fd), "seccomp listener")
			}
		}
	}
	return reports, listener, io.ErrShortBuffer
}

// Sizes and offsets of struct seccomp_notif (seccomp_unotify(2)).
const (
	notifSize = 80
	notifCall = 16
)

// watch waits for a call that the filter does not list, which the kernel holds up until
// it is answered. It never is: the process is killed.
func (p *Process) watch() {
	defer close(p.watched)
	if p.listener == nil {
		return
	}
	defer p.listener.Close()
	conn, err := p.listener.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, 0); err != nil || ready[0].Revents == 0 {
			return false
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			return true // the process is gone
		}
		var notif [notifSize]byte
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&notif))); errno != 0 {
			return false
		}
		p.denied = callName(int32(binary.NativeEndian.Uint32(notif[notifCall:])))
		p.Kill()
		return true
	})
}
