package vmm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/vmm/jail"
)

// openBoot opens the boot files and replaces their paths by descriptors, which QEMU can open without access to the
// host's folders.
func openBoot(b Boot, files []*os.File) (Boot, []*os.File, error) {
	open := func(path *string) error {
		if *path == "" {
			return nil
		}
		f, err := os.Open(*path)
		if err != nil {
			return err
		}
		files = append(files, f)
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			return fmt.Errorf("open %s: %w", *path, errNotRegular)
		}
		*path = fmt.Sprintf("/proc/self/fd/%d", len(files)+2)
		return nil
	}
	b.Disks = append([]string(nil), b.Disks...)
	err := errors.Join(open(&b.Kernel), open(&b.Initrd))
	for i := range b.Disks {
		err = errors.Join(err, open(&b.Disks[i]))
	}
	return b, files, err
}

// kvmUsable returns nil if this process can open a device like KVM's, and so can a QEMU that opens it itself. QEMU
// started by root becomes a user who owns nothing.
func kvmUsable(q QEMU, device string, uid int) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New(device +
			" does not exist: enable virtualization in the firmware, or nested virtualization on the host, " +
			"and load kvm_intel or kvm_amd")
	case errors.Is(err, fs.ErrPermission):
		return errors.New(device +
			" can't be opened: add yourself to its group (usually `sudo usermod -aG kvm $USER`, then log in again)")
	case err != nil:
		return errors.New(strings.TrimPrefix(err.Error(), "open "))
	}
	defer f.Close()
	if uid != 0 || usesKVM(q, KVM) == jail.KVMPassed {
		return nil
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if all := st.Mode().Perm()&0o006 == 0o006; !all && jail.KVMGroup(device) == nil {
		return fmt.Errorf(
			"%s can't be opened by QEMU %s, which root starts as a user of its own: "+
				"the device's mode is %#o and its group %d; "+
				"give it a group other than root's, with mode 0660 (udev's rule for it does), or take QEMU 9.0 or newer, "+
				"which is given the open device",
			device, q.Version, st.Mode().Perm(), st.Sys().(*syscall.Stat_t).Gid)
	}
	return nil
}

// memoryFile returns an empty, nameless file, and a second descriptor that can only write to it.
func memoryFile(name string) (file, write *os.File, err error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("create memory: %w", err)
	}
	file = os.NewFile(uintptr(fd), name)
	if write, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_WRONLY, 0); err != nil {
		file.Close()
	}
	return file, write, err
}
