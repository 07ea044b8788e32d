package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access rights on files, by purpose (Documentation/userspace-api/landlock.rst).
const (
	llRead   = unix.LANDLOCK_ACCESS_FS_READ_FILE
	llExec   = unix.LANDLOCK_ACCESS_FS_EXECUTE
	llList   = unix.LANDLOCK_ACCESS_FS_READ_DIR
	llDevice = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// Confines reports whether this kernel can keep a program from opening files for writing, and from using its owner's
// rights. It needs Landlock and system call filters.
func Confines(p Program) bool { return len(p.Files) > 0 && landlockABI() > 0 && CanFilter() }

// landlockABI returns the running kernel's ABI; 0 if it has no Landlock.
func landlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// landlockAttr returns a ruleset that refuses everything that an ABI can refuse.
func landlockAttr(abi int) (attr unix.LandlockRulesetAttr, size uintptr) {
	attr.Handled_access_fs = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1 // ABI 1: all up to MAKE_SYM
	size = unsafe.Sizeof(attr.Handled_access_fs)                     // all that ABIs 1 to 3 know
	for _, more := range []struct {
		abi  int
		fs   uint64
		net  uint64
		kind uint64
	}{
		{abi: 2, fs: unix.LANDLOCK_ACCESS_FS_REFER},
		{abi: 3, fs: unix.LANDLOCK_ACCESS_FS_TRUNCATE},
		{abi: 4, net: unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP},
		{abi: 5, fs: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
		{abi: 6, kind: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL},
		{abi: 9, fs: unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
		{abi: 10, net: unix.LANDLOCK_ACCESS_NET_BIND_UDP | unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP},
	} {
		if abi < more.abi {
			break
		}
		attr.Handled_access_fs |= more.fs
		attr.Handled_access_net |= more.net
		attr.Scoped |= more.kind
	}
	if attr.Handled_access_net != 0 {
		size = unsafe.Offsetof(attr.Handled_access_net) + unsafe.Sizeof(attr.Handled_access_net)
	}
	if attr.Scoped != 0 {
		size = unsafe.Offsetof(attr.Scoped) + unsafe.Sizeof(attr.Scoped)
	}
	return attr, size
}

// ruleset returns a Landlock ruleset. It lets a process execute a program and its interpreter, read the files of the
// program and those that it inherits, and use some devices. It refuses everything else.
func ruleset(abi int, p Program, devices []string, inherited []*os.File) (_ *os.File, err error) {
	attr, size := landlockAttr(abi)
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return nil, fmt.Errorf("create ruleset: %w", errno)
	}
	rules := os.NewFile(fd, "landlock ruleset")
	allow := func(fd int, access uint64) error {
		beneath := unix.LandlockPathBeneathAttr{Allowed_access: access & attr.Handled_access_fs, Parent_fd: int32(fd)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules.Fd(), unix.LANDLOCK_RULE_PATH_BENEATH,
			uintptr(unsafe.Pointer(&beneath)), 0, 0, 0)
		if errno != 0 && errno != unix.EBADFD { // a memfd is in no file system: opening it is not restricted
			return errno
		}
		return nil
	}
	allowPath := func(path string, access uint64) {
		if err != nil {
			return
		}
		fd, openErr := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(openErr, fs.ErrNotExist) {
			return
		}
		if err = openErr; err == nil {
			err = allow(fd, access)
			unix.Close(fd)
		}
		if err != nil {
			err = fmt.Errorf("allow %s: %w", path, err)
		}
	}
	for _, path := range p.Files {
		access := uint64(llRead)
		if path == p.Path || path == p.Interpreter {
			access |= llExec
		}
		allowPath(path, access)
	}
	for _, path := range p.Dirs {
		allowPath(path, llRead)
	}
	for _, path := range devices {
		allowPath(path, llDevice)
	}
	for _, f := range inherited {
		if st, statErr := f.Stat(); err == nil && statErr == nil && st.Mode().IsRegular() {
			err = allow(int(f.Fd()), llRead)
		}
	}
	if err != nil {
		rules.Close()
		return nil, err
	}
	return rules, nil
}
