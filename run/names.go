package run

import (
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

// Kernel names a guest kernel.
type Kernel = image.Kernel

const (
	Linux = image.Linux // Debian's cloud kernel
	Nanos = image.Nanos // the Nanos unikernel: one process, no fork
)

// Arch names an architecture as Go does.
type Arch = image.Arch

const (
	AMD64 = image.AMD64
	ARM64 = image.ARM64
)

// HostArch returns the architecture of this machine.
func HostArch() Arch { return image.HostArch() }

// Accel names an accelerator as QEMU does.
type Accel = vmm.Accel

const (
	Auto = vmm.Auto // the best one on which a real boot succeeds
	KVM  = vmm.KVM
	HVF  = vmm.HVF
	TCG  = vmm.TCG // QEMU's own emulation: always available, slower
)
