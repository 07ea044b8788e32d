package vmm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// openBoot opens what the machine boots from and returns it under the paths
// that QEMU, which has no access to our folders, can open: its own descriptors.
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

// kvmUsable is nil when /dev/kvm can be opened.
func kvmUsable() error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("/dev/kvm does not exist: enable virtualization in the firmware, or nested virtualization on the host, and load kvm_intel or kvm_amd")
	case errors.Is(err, fs.ErrPermission):
		return errors.New("/dev/kvm can't be opened: add yourself to its group (usually `sudo usermod -aG kvm $USER`, then log in again)")
	case err != nil:
		return errors.New(strings.TrimPrefix(err.Error(), "open "))
	}
	f.Close()
	return nil
}
