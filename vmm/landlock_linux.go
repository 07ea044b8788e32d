package vmm

import (
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confineThread takes from the calling thread, and from what it starts, every
// file but those QEMU needs: its program and libraries for reading, a few
// devices, and the files it boots from. It uses Landlock (Linux 5.13 on; see
// Documentation/userspace-api/landlock.rst) and returns false where the kernel
// has none. The thread must have no_new_privs and must never be used again for
// anything else.
func confineThread(program string, files []*os.File) bool {
	const (
		read  = unix.LANDLOCK_ACCESS_FS_READ_FILE
		list  = unix.LANDLOCK_ACCESS_FS_READ_DIR
		exec  = unix.LANDLOCK_ACCESS_FS_EXECUTE
		write = unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	)
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return false
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: handledAccess(int(abi))}
	size := unsafe.Sizeof(attr.Handled_access_fs) // the first field is all that ABI 1 knows
	if abi >= 4 {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		size += unsafe.Sizeof(attr.Handled_access_net)
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return false
	}
	rules := int(fd)
	defer unix.Close(rules)
	allow := func(fd int, access uint64) {
		beneath := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
		_, _, _ = unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0)
	}
	allowPath := func(path string, access uint64) {
		if fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
			allow(fd, access)
			unix.Close(fd)
		}
	}
	for _, dir := range []string{"/usr", "/lib", "/lib64", "/bin", "/opt", "/nix/store", prefixOf(program)} {
		allowPath(dir, read|list|exec)
	}
	device := uint64(read | write)
	if abi >= 5 {
		device |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	for path, access := range map[string]uint64{
		"/etc/ld.so.cache": read, "/proc": read | list, "/sys/devices/system": read | list,
		"/dev/null": device, "/dev/urandom": read, "/dev/kvm": device,
	} {
		allowPath(path, access)
	}
	for _, f := range files {
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			allow(int(f.Fd()), read)
		}
	}
	_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0)
	return errno == 0
}

// prefixOf is the folder above a program's own: /opt/qemu for /opt/qemu/bin/q.
func prefixOf(program string) string {
	if real, err := filepath.EvalSymlinks(program); err == nil {
		program = real
	}
	return filepath.Dir(filepath.Dir(program))
}

// handledAccess is every file access that a Landlock ABI can refuse.
func handledAccess(abi int) uint64 {
	access := uint64(unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1) // ABI 1: all up to MAKE_SYM
	if abi >= 2 {
		access |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		access |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 5 {
		access |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return access
}
