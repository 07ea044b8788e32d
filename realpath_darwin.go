package unitask

import (
	"bytes"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// realPath is where an open file is, links resolved: the kernel's own answer
// (F_GETPATH of fcntl(2)), which nobody can change under our hands.
func realPath(f *os.File) (string, error) {
	buf := make([]byte, unix.PathMax)
	var pin runtime.Pinner
	pin.Pin(&buf[0])
	defer pin.Unpin()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_GETPATH, int(uintptr(unsafe.Pointer(&buf[0])))); err != nil {
		return "", err
	}
	name, _, _ := bytes.Cut(buf, []byte{0})
	return string(name), nil
}
