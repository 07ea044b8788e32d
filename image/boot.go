package image

// Boot describes what an image's kernel needs from the machine that boots it.
type Boot struct {
	Kernel string
	Initrd string // "" if the kernel needs none
	// Append is the kernel's command line, for an unattended machine that exits with its program. "" means that the
	// kernel accepts none.
	Append string
	Disks  []string // raw, read-only, in order
	// MachineOptions are options for QEMU's -M.
	MachineOptions string
	// PCI means that the kernel finds devices on PCI only.
	PCI bool
	// BIOS means that the machine needs PCI and a BIOS: the disk boots by itself, without microvm's way to load a
	// kernel.
	BIOS bool
}

// Boot returns how to boot the image.
func (im *Image) Boot() Boot {
	boot := Boot{Kernel: im.Path(KernelFile), Initrd: im.Path(InitrdFile), Disks: []string{im.Path(DiskFile)}}
	switch {
	case im.Kernel == Nanos && im.Arch == AMD64:
		boot.MachineOptions = "ioapic2=off" // with it, the kernel hangs silently
		boot.BIOS = true
	case im.Kernel == Nanos:
		boot.PCI = true
	case im.Arch == AMD64:
		// The ACPI of microvm has no legacy devices, so Linux leaves a PC's interrupt controller and timer as they are. If
		// that timer fired just as Linux enabled interrupts, it arrived as number 0 (division by zero) and ended the boot.
		boot.MachineOptions = "acpi=on,pit=off,pic=off"
		boot.Append = "console=ttyS0 no_timer_check " + linuxArgs
	default:
		boot.Append = "console=ttyAMA0 " + linuxArgs
	}
	return boot
}

// linuxArgs: with reboot=t and panic=-1 a stop becomes a reset, and -no-reboot makes QEMU exit on it. IPv6 is off
// until init enables it for the loopback. The other options save boot time: no self-tests, no audit, no zeroing.
//
// On amd64, no_timer_check is added. Without it, the kernel on q35 waits for a few timer ticks, misses them on a busy
// host, and panics before it has a console. Linux skips this check by itself if it knows its hypervisor.
const linuxArgs = "quiet reboot=t panic=-1 cryptomgr.notests ipv6.disable_ipv6=1 lsm=landlock audit=0 " +
	"init_on_alloc=0 cgroup_disable=memory,pressure"
