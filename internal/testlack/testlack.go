// Package testlack gives tests a host that lacks something: room on a disk, file descriptors.
package testlack

import (
	"net"
	"os"
	"syscall"
)

// Descriptors makes a listener's accept fail n times for lack of descriptors.
func Descriptors[C any](n int, accept func() (C, error)) func() (C, error) {
	return func() (none C, err error) {
		if n--; n >= 0 {
			return none, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
		}
		return accept()
	}
}
