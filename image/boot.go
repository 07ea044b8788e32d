package image

// Boot is what an image's kernel wants of the machine that boots it.
type Boot struct {
	Kernel string
	Initrd string // "" when the kernel wants none
	// Append is the kernel's command line, for a machine that nobody looks at and that is gone when its program is; "" if
	// the kernel takes none.
	Append string
	Disks  []string // raw, read-only, in order
	// MachineOptions are for QEMU's -M.
	MachineOptions string
	// PCI: the kernel finds its devices on PCI only.
	PCI bool
	// BIOS: the disk boots by itself on a machine that has PCI and no microvm's way to load a kernel.
	BIOS bool
}

// Boot returns how the image is booted.
func (im *Image) Boot() Boot {
	boot := Boot{Kernel: im.Path(KernelFile), Initrd: im.Path(InitrdFile), Disks: []string{im.Path(DiskFile)}}
	switch {
	case im.Kernel == Nanos && im.Arch == AMD64:
		boot.MachineOptions = "ioapic2=off" // with it, the kernel hangs without a word
		boot.BIOS = true
	case im.Kernel == Nanos:
		boot.PCI = true
	case im.Arch == AMD64:
		// Its ACPI has no legacy devices, so Linux leaves the interrupt controller and the timer of a PC as they are; where
		// that timer came just as Linux let interrupts in, it had number 0, the division by zero's, and the boot was over.
		boot.MachineOptions = "acpi=on,pit=off,pic=off"
		boot.Append = "console=ttyS0 no_timer_check " + linuxArgs
	default:
		boot.Append = "console=ttyAMA0 " + linuxArgs
	}
	return boot
}

// linuxArgs: with reboot=t and panic=-1 a stop is a reset, which -no-reboot turns into
// an end. IPv6 is off until init switches it on for the loopback. The rest saves boot
// time: no self-tests, no audit, no zeroing.
//
// On amd64 there is no_timer_check besides: a q35's kernel looks for a few ticks of its timer, which a busy host lets
// it miss, and panics before it has a console. Linux leaves that out by itself where it knows its hypervisor.
const linuxArgs = "quiet reboot=t panic=-1 cryptomgr.notests ipv6.disable_ipv6=1 lsm=landlock audit=0 init_on_alloc=0 cgroup_disable=memory,pressure"
