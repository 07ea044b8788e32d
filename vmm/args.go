package vmm

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/unitask/unitask/guest/contract"
)

// Boot lists the files and options that a machine boots with. QEMU opens the paths.
type Boot struct {
	Kernel string
	Initrd string   // "" if the kernel needs none
	Append string   // kernel command line
	Disks  []string // raw images, read-only, in order
	// MachineOptions are what this kernel needs from the machine beyond the defaults below, in -M's form:
	// "acpi=on,rtc=on".
	MachineOptions string
	// PCI puts the disks and the network card on a PCI bus, if the machine has one, instead of virtio-mmio.
	PCI bool
	// BIOS means that on a q35 the first disk boots by itself, and Kernel must not.
	BIOS bool
}

// memoryBlock is QEMU's name for a machine's memory.
const memoryBlock = "mem"

// paths returns the files to open.
func (b Boot) paths() (list []string) {
	for _, path := range append([]string{b.Kernel, b.Initrd}, b.Disks...) {
		if path != "" {
			list = append(list, path)
		}
	}
	return list
}

// inherited locates the descriptors that QEMU inherits from Start.
type inherited struct {
	nic, qmp, console int    // stream sockets
	gdb               int    // Config.GDB, 0 without it
	kvm               int    // the open device of KVM, 0 if QEMU opens it
	memory            string // the path of Config.Memory, "" without it
}

// GuestMAC is the address of every machine's network card. Each machine has its own network, so the address need not be
// unique, and a snapshot can keep it.
const GuestMAC = contract.GuestMAC

// NetDevice is QEMU's name for its end of the network card's link.
const NetDevice = "net0"

// DebugExitPort is the I/O port of amd64's debug-exit device. Writing v makes QEMU exit with status v<<1|1.
const DebugExitPort = contract.DebugExitPort

// sandboxOptions enable all four groups of system calls that QEMU's own filter can refuse. It can refuse no others.
const sandboxOptions = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// memoryOptions exclude the guest's memory from core dumps and from the host's page merging. Through that, one machine
// could find out what is in another's memory.
const memoryOptions = "mem-merge=off,dump-guest-core=off"

// arguments returns QEMU's command line without the program's name. It is pure: the paths of c.Boot are those that QEMU
// opens.
func arguments(c Config, at inherited) []string {
	args := []string{
		"-nodefaults",
		"-no-user-config",
		"-no-reboot",
		"-display", "none",
		"-accel", accelArg(c.Accel, at),
		"-cpu", cpuModel(c.Arch, c.Accel),
		"-smp", strconv.Itoa(processors(c)),
		"-m", strconv.Itoa(c.MemoryMB),
	}
	if at.kvm != 0 {
		args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", at.kvm, kvmSet))
	}
	options := strings.TrimPrefix(c.Boot.MachineOptions+","+memoryOptions, ",")
	if onQ35(c) {
		options = memoryOptions // an image's options are for microvm
	}
	if at.memory != "" {
		// Changes go to the memory file while a template is being made, and to private copies of its pages in a
		// clone.
		share := map[bool]string{true: "on", false: "off"}[c.State == nil || c.MemoryShared]
		if c.MemoryFile && c.QEMU.opensReadOnly() {
			share += ",readonly=on,rom=off"
		}
		args = append(args, "-object", fmt.Sprintf("memory-backend-file,id=%s,size=%dM,mem-path=%s,share=%s", memoryBlock,
			c.MemoryMB, comma(at.memory), share))
		options += ",memory-backend=" + memoryBlock
	}
	args = append(args, boardArguments(c, options)...)
	if c.QEMU.Sandbox {
		args = append(args, "-sandbox", sandboxOptions)
	}
	if c.State != nil {
		args = append(args, "-S", "-incoming", "defer") // without a kernel, and stopped, whatever the state says
	}
	if c.Boot.Kernel != "" {
		args = append(args, "-kernel", c.Boot.Kernel)
		if c.Boot.Initrd != "" {
			args = append(args, "-initrd", c.Boot.Initrd)
		}
		if c.Boot.Append != "" {
			args = append(args, "-append", c.Boot.Append)
		}
	}
	if c.Paused {
		args = append(args, "-S")
	}
	if c.LogItems != "" {
		args = append(args, "-d", c.LogItems)
	}
	if c.Keep {
		args = append(args, "-action", "shutdown=pause,panic=pause")
	}
	if at.gdb != 0 {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=gdb,fd=%d,server=on,wait=off", at.gdb), "-gdb", "chardev:gdb")
	}
	return append(args, deviceArguments(c, at)...)
}

// boardArguments choose the machine's board, and the device with which a guest makes QEMU exit.
func boardArguments(c Config, options string) (args []string) {
	switch c.Arch {
	case ARM64:
		args = append(args, "-M", "virt,"+gic(c)+","+options)
		if !c.Keep {
			args = append(args, "-semihosting-config", "enable=on,target=native")
		}
	default:
		if onQ35(c) {
			if !c.Boot.BIOS { // a boot loader asks the keyboard controller about the memory above 1 MiB
				options = "i8042=off," + options
			}
			args = append(args, "-M", "q35,sata=off,smbus=off,vmport=off,smm=off,hpet=off,"+options)
		} else { // without rtc the guest has no wall clock until it is seeded
			args = append(args, "-M", "microvm,rtc=on,isa-serial=on,"+options, "-global", "virtio-mmio.force-legacy=false")
		}
		if !c.Keep {
			args = append(args, "-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=4", DebugExitPort))
		}
	}
	return args
}

// deviceArguments connect the disks, the network card, the monitor and the console.
func deviceArguments(c Config, at inherited) (args []string) {
	bus, card := "device", ""
	if c.Boot.PCI || onQ35(c) {
		bus, card = "pci", ",romfile=" // no ROM for network boot, which a host may lack
	}
	for i, d := range c.Boot.Disks {
		id := fmt.Sprintf("disk%d", i)
		args = append(args,
			"-blockdev", "driver=raw,node-name="+id+",read-only=on,file.driver=file,file.locking=off,file.filename="+comma(d),
			"-device", "virtio-blk-"+bus+",drive="+id)
	}
	return append(args,
		"-netdev", fmt.Sprintf("stream,id=%s,server=off,addr.type=fd,addr.str=%d", NetDevice, at.nic),
		"-device", "virtio-net-"+bus+",netdev="+NetDevice+",mac="+GuestMAC+card,
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", at.qmp),
		"-mon", "chardev=qmp,mode=control",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", at.console),
		"-serial", "chardev:console",
	)
}

// processors returns the number of a machine's processors.
func processors(c Config) int { return max(1, int(math.Ceil(c.CPUs))) }

// onQ35 reports whether a machine is a q35 instead of a microvm.
func onQ35(c Config) bool { return c.Arch == AMD64 && (c.QEMU.NoMicrovm || c.Q35) }

// gic chooses an arm64 machine's interrupt controller. Hardware acceleration uses the best version: KVM can't emulate
// version 2 on hosts with version 3 only, and HVF in QEMU 11 uses version 3. QEMU 7 has no version 3 for HVF. There is
// no ITS: HVF has none, and with one Nanos waits forever for its disk's first interrupt. Without it, PCI devices use
// wired interrupts.
func gic(c Config) string {
	if c.Accel == TCG || (c.Accel == HVF && strings.HasPrefix(c.QEMU.Version, "7.")) {
		return "gic-version=2"
	}
	return "gic-version=max,its=off"
}

// kvmSet is QEMU's number for the descriptor set with KVM's device.
const kvmSet = 1

func accelArg(a Accel, at inherited) string {
	switch {
	case a == TCG:
		// Apart from its RAM, the translation buffer is a machine's largest memory. QEMU's default is up to a quarter of the
		// host's memory.
		return "tcg,tb-size=128"
	case at.kvm != 0:
		return fmt.Sprintf("kvm,device=/dev/fdset/%d", kvmSet)
	}
	return string(a)
}

// cpuModel requests everything that the accelerator supports except nested virtualization and performance counters.
// These help hostile code only, and some nested hosts lack them. Under TCG, five-level page tables are off. With them,
// Linux 6.1 can't read its own memory when it checks for faults, and all paths in /proc are "xxxx". erms and fsrm are
// off too. They make kernel and C library copy and clear with rep movsb and rep stosb. QEMU emulates these byte by
// byte, at some 3 ns each. Clearing a page took 12 us more, and a boot 20 % longer.
func cpuModel(arch Arch, a Accel) string {
	switch {
	case a == TCG && arch == ARM64:
		return "max"
	case a == TCG:
		return "max,svm=off,la57=off,erms=off,fsrm=off" // qemu64 costs Node one more second
	case arch == ARM64:
		return "host,pmu=off"
	}
	return "host,vmx=off,svm=off,pmu=off"
}

// comma doubles commas, which separate options in QEMU's option strings.
func comma(path string) string {
	out := make([]byte, 0, len(path))
	for i := range len(path) {
		if path[i] == ',' {
			out = append(out, ',')
		}
		out = append(out, path[i])
	}
	return string(out)
}
