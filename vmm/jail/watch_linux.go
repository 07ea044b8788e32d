package jail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receive reads the reports of a stage until it has executed its program, and passes on
// the listener of its filter if it sends one, which it does at most once.
func receive(status *os.File, listener func(*os.File)) (reports []byte, err error) {
	buf, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	for len(reports) < maxReports {
		n, rn, _, _, err := unix.Recvmsg(int(status.Fd()), buf, rights, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return reports, err
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
				_ = unix.SetNonblock(fd, true) // so that the runtime waits for it, and no thread of ours
				listener(os.NewFile(uintptr(fd), "seccomp listener"))
			}
		}
	}
	return reports, io.ErrShortBuffer
}

// Sizes and offsets of struct seccomp_notif and of its answer (seccomp_unotify(2)).
const (
	notifSize   = 80
	notifCall   = 16
	answerSize  = 24
	answerFlags = 20
)

// canContinue says that the kernel lets a listener have a call made (Linux 5.5).
func canContinue() bool {
	var name unix.Utsname
	var major, minor int
	if unix.Uname(&name) != nil {
		return false
	}
	_, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 5 || major == 5 && minor >= 5)
}

// watch waits for a call that the filter does not list, which the kernel holds up until
// it is answered. It never is: the process is killed. Only the first execve is answered,
// where the filter asks about it (once): that is the stage's own. The kernel may read its
// arguments after the answer, but nobody is there yet who would change them.
func (p *Process) watch(once bool) {
	defer close(p.watched)
	defer p.listener.Close()
	conn, err := p.listener.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool {
		for {
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
			call := int32(binary.NativeEndian.Uint32(notif[notifCall:]))
			if once && call == unix.SYS_EXECVE {
				once = false
				var answer [answerSize]byte
				copy(answer[:8], notif[:8]) // the call's id
				binary.NativeEndian.PutUint32(answer[answerFlags:], unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
				if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer))); errno == 0 {
					continue
				}
			}
			p.denied = callName(call)
			p.Kill()
			return true
		}
	})
}
