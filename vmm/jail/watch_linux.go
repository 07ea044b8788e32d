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

// receive reads a stage's reports until the stage has executed its program, and passes on the descriptors that it
// sends.
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
				_ = unix.SetNonblock(fd, true) // so that the runtime waits for it, and no thread blocks
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
	notifArgs   = 32
	answerSize  = 24
	answerValue = 8
	answerError = 16
	answerFlags = 20
)

// addFD is struct seccomp_notif_addfd.
type addFD struct {
	id           uint64
	flags        uint32
	source       uint32
	target, mode uint32
}

// canContinue reports whether the kernel lets a listener allow a call.
func canContinue() bool { return kernelAtLeast(5, 5) }

// CanGive reports whether the kernel lets a listener answer a call with a descriptor (Spec.Given).
func CanGive() bool { return kernelAtLeast(5, 9) }

func kernelAtLeast(wantMajor, wantMinor int) bool {
	var name unix.Utsname
	var major, minor int
	if unix.Uname(&name) != nil {
		return false
	}
	_, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > wantMajor || major == wantMajor && minor >= wantMinor)
}

// notification is a call that waits for an answer.
type notification [notifSize]byte

func (n *notification) call() int32           { return int32(binary.NativeEndian.Uint32(n[notifCall:])) }
func (n *notification) argument(i int) uint64 { return binary.NativeEndian.Uint64(n[notifArgs+8*i:]) }

func (n *notification) answer(fd uintptr, value uint64, flags uint32) bool {
	return n.send(fd, value, 0, flags)
}

func (n *notification) refuse(fd uintptr, errno unix.Errno) bool { return n.send(fd, 0, errno, 0) }

func (n *notification) send(fd uintptr, value uint64, errno unix.Errno, flags uint32) bool {
	var answer [answerSize]byte
	copy(answer[:8], n[:8]) // the call's id
	binary.NativeEndian.PutUint64(answer[answerValue:], value)
	binary.NativeEndian.PutUint32(answer[answerError:], uint32(-int32(errno)))
	binary.NativeEndian.PutUint32(answer[answerFlags:], flags)
	return ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer)) == 0
}

// give answers an openat with a new descriptor for a file of this process.
func (n *notification) give(fd uintptr, file *os.File) bool {
	add := addFD{id: binary.NativeEndian.Uint64(n[:8]), source: uint32(file.Fd())}
	got, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_ADDFD, uintptr(unsafe.Pointer(&add)))
	return errno == 0 && n.answer(fd, uint64(got), 0)
}

func ioctl(fd uintptr, request uint, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uintptr(request), uintptr(arg))
	return errno
}

// watch waits for a call that the filter does not list. The kernel blocks such a call until watch answers it. watch
// answers none of them and kills the process, with three exceptions. The first execve, if the filter asks about it
// (once), is the stage's own. The first matching openat receives the Given of the spec. The kernel may read an execve's
// arguments after the answer, but nobody can change them yet; the openat's arguments do not matter. If the filter asks
// about every file that is opened, opening is allowed until the process is sealed.
func (p *Process) watch(once bool, given *os.File) {
	defer close(p.watched)
	defer p.listener.Close()
	defer func() { given.Close() }() // nil will do
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
				return true // the process has gone
			}
			var n notification
			if ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != 0 {
				return false
			}
			call := n.call()
			switch {
			case once && call == unix.SYS_EXECVE:
				once = false
				if n.answer(fd, 0, unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE) {
					continue
				}
			case given != nil && call == unix.SYS_OPENAT &&
				n.argument(2)&(opensNew|unix.O_ACCMODE|unix.O_CLOEXEC) == unix.O_RDWR:
				came := n.give(fd, given)
				given.Close()
				given = nil
				if came {
					continue
				}
			case p.asks && opens(int(call)) && p.answerOpen(&n, fd):
				continue
			}
			p.denied = callName(call)
			p.Kill()
			return true
		}
	})
}
