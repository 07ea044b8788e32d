package jail

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// moreCalls are amd64's calls in addition to those of every architecture. The calls of the x32 ABI have separate
// numbers, and none is listed.
var moreCalls = []uintptr{
	unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_GETDENTS, unix.SYS_POLL, unix.SYS_SELECT,
	unix.SYS_EPOLL_CREATE,
	unix.SYS_EPOLL_WAIT, unix.SYS_EVENTFD, unix.SYS_SIGNALFD, unix.SYS_PIPE, unix.SYS_DUP2, unix.SYS_ARCH_PRCTL,
	unix.SYS_TIME, unix.SYS_NEWFSTATAT,
}

func moreConditionals(create uint32) []conditional {
	return []conditional{{unix.SYS_OPEN, [][]condition{{{1, create, []uint32{0}, false}}}, 0}}
}

// opens reports whether a call opens a file.
func opens(call int) bool { return call == unix.SYS_OPENAT || call == unix.SYS_OPEN }
