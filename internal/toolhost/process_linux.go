package toolhost

import (
	"runtime"
	"syscall"
)

// attributes make the kernel kill a server when unitask is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func lockThread() { runtime.LockOSThread() }
