package vmm

import (
	"errors"
	"fmt"
	"os"
)

// openBoot checks the boot files. QEMU runs as the same user and opens the paths itself.
func openBoot(b Boot, files []*os.File) (Boot, []*os.File, error) {
	for _, path := range b.paths() {
		if st, err := os.Stat(path); err != nil {
			return b, files, err
		} else if !st.Mode().IsRegular() {
			return b, files, fmt.Errorf("open %s: %w", path, errNotRegular)
		}
	}
	return b, files, nil
}

func kvmUsable(QEMU, string, int) error { return errors.New("KVM is Linux's") }

func memoryFile(string) (file, write *os.File, err error) {
	return nil, nil, errors.New("this system has no memfd")
}
