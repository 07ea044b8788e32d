package vmm

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// Every argument is expected, and there is no other one. So no unlisted argument can get into the command line of a
// machine for hostile code. A fraction of a processor is one processor with less time.
func TestProcessors(t *testing.T) {
	for cpus, want := range map[float64]int{0: 1, 0.5: 1, 1: 1, 1.5: 2, 64: 64} {
		if got := processors(Config{CPUs: cpus}); got != want {
			t.Errorf("%g: %d", cpus, got)
		}
	}
}

// Parts of the command lines.
const (
	tcg         = "tcg,tb-size=128"
	tcgCPU      = "max,svm=off,la57=off,erms=off,fsrm=off"
	hostCPU     = "host,vmx=off,svm=off,pmu=off"
	microvm     = "microvm,rtc=on,isa-serial=on,mem-merge=off,dump-guest-core=off"
	q35         = "q35,sata=off,smbus=off,vmport=off,smm=off,hpet=off,i8042=off,mem-merge=off,dump-guest-core=off"
	virt        = "virt,gic-version=2,mem-merge=off,dump-guest-core=off"
	virtHost    = "virt,gic-version=max,its=off,mem-merge=off,dump-guest-core=off"
	mmio        = "-global virtio-mmio.force-legacy=false"
	debugExit   = "-device isa-debug-exit,iobase=0x501,iosize=4"
	semihosting = "-semihosting-config enable=on,target=native"
	disk0       = "-blockdev driver=raw,node-name=disk0,read-only=on,file.driver=file,file.locking=off,file.filename=/d"
	disk1       = "-blockdev driver=raw,node-name=disk1,read-only=on,file.driver=file,file.locking=off,file.filename=/x,,y"
	diskPCI     = "-device virtio-blk-pci,drive=disk0"
	netPCI      = "-device virtio-net-pci,netdev=net0,mac=52:54:00:75:74:01,romfile="
	microvmACPI = "microvm,rtc=on,isa-serial=on,acpi=on,mem-merge=off,dump-guest-core=off"
	inMemory    = ",memory-backend=mem"
	memoryFD7   = "-object memory-backend-file,id=mem,size=256M,mem-path=/proc/self/fd/7,"
)

type argsRow struct {
	config Config
	want   []string
}

// argsRows are the cases of TestArgs.
func argsRows(
	filtered QEMU, common func(accel string, cpu string, machine string, more ...string) []string, sandbox string,
	withoutMicrovm QEMU,
) map[string]argsRow {
	rows := map[string]argsRow{
		"amd64 tcg, everything": {
			Config{Arch: AMD64, Accel: TCG, QEMU: filtered,
				Boot: Boot{Kernel: "/k", Initrd: "/i", Append: "a b", Disks: []string{"/d", "/x,y"}, MachineOptions: "acpi=on"}},
			common(tcg, tcgCPU, microvmACPI, mmio,
				debugExit, sandbox, "-initrd /i", "-append a b",
				disk0, "-device virtio-blk-device,drive=disk0",
				disk1, "-device virtio-blk-device,drive=disk1"),
		},
		"amd64 kvm": {
			Config{Arch: AMD64, Accel: KVM, Boot: Boot{Kernel: "/k"}},
			common("kvm", hostCPU, microvm, mmio, debugExit),
		},
		"amd64 kvm, whose device it is given": {
			Config{Arch: AMD64, Accel: KVM, Boot: Boot{Kernel: "/k"}},
			common("kvm,device=/dev/fdset/1", hostCPU, microvm, mmio, debugExit,
				"-add-fd fd=9,set=1"),
		},
		"amd64 q35": {
			Config{Arch: AMD64, Accel: TCG, QEMU: withoutMicrovm,
				Boot: Boot{Kernel: "/k", Disks: []string{"/d"}, MachineOptions: "acpi=on"}},
			append(slices.DeleteFunc(common(tcg, tcgCPU, q35, debugExit),
				func(a string) bool { return strings.Contains(a, "virtio-net-device") }),
				disk0, diskPCI,
				netPCI),
		},
		"amd64, whose counter has no known pace": {
			Config{Arch: AMD64, Accel: TCG, Q35: true, Boot: Boot{Kernel: "/k", MachineOptions: "acpi=on"}},
			append(slices.DeleteFunc(common(tcg, tcgCPU, q35, debugExit),
				func(a string) bool { return strings.Contains(a, "virtio-net-device") }),
				netPCI),
		},
		"arm64, which has no microvm to replace": {
			Config{Arch: ARM64, Accel: TCG, Q35: true, Boot: Boot{Kernel: "/k"}},
			common(tcg, "max", virt, semihosting),
		},
		"amd64 q35, a disk that boots by itself": {
			Config{Arch: AMD64, Accel: TCG, QEMU: withoutMicrovm,
				Boot: Boot{Disks: []string{"/d"}, MachineOptions: "ioapic2=off", BIOS: true}},
			append(slices.DeleteFunc(common(tcg, tcgCPU,
				"q35,sata=off,smbus=off,vmport=off,smm=off,hpet=off,mem-merge=off,dump-guest-core=off", debugExit),
				func(a string) bool { return strings.Contains(a, "virtio-net-device") || a == "-kernel /k" }),
				disk0, diskPCI,
				netPCI),
		},
		"arm64 tcg": {
			Config{Arch: ARM64, Accel: TCG, QEMU: filtered, Boot: Boot{Kernel: "/k"}},
			common(tcg, "max", virt, semihosting, sandbox),
		},
		"arm64 kvm": {
			Config{Arch: ARM64, Accel: KVM, Boot: Boot{Kernel: "/k"}},
			common("kvm", "host,pmu=off", virtHost, semihosting),
		},
		"amd64 hvf": {
			Config{Arch: AMD64, Accel: HVF, Boot: Boot{Kernel: "/k"}},
			common("hvf", hostCPU, microvm, mmio,
				debugExit),
		},
		"arm64 hvf": {
			Config{Arch: ARM64, Accel: HVF, Boot: Boot{Kernel: "/k"}},
			common("hvf", "host,pmu=off", virtHost, semihosting),
		},
	}
	maps.Copy(rows, moreArgsRows(filtered, common, sandbox, withoutMicrovm))
	return rows
}

// moreArgsRows are the other half.
func moreArgsRows(
	filtered QEMU, common func(accel string, cpu string, machine string, more ...string) []string, sandbox string,
	withoutMicrovm QEMU,
) map[string]argsRow {
	return map[string]argsRow{
		"a template in the making": {
			Config{Arch: AMD64, Accel: TCG, Boot: Boot{Kernel: "/k"}},
			common(tcg, tcgCPU, microvm+inMemory, mmio,
				debugExit, memoryFD7+"share=on"),
		},
		"a clone of a template": {
			Config{Arch: AMD64, Accel: TCG, Boot: Boot{MachineOptions: "acpi=on"}, State: []byte("x")},
			slices.DeleteFunc(common(tcg, tcgCPU, microvmACPI+inMemory, mmio,
				debugExit, memoryFD7+"share=off", "-S", "-incoming defer"),
				func(a string) bool { return a == "-kernel /k" }),
		},
		"a clone of a template's own file": {
			Config{Arch: AMD64, Accel: TCG, QEMU: QEMU{probed: probed{Version: "8.2.0"}}, State: []byte("x"), MemoryFile: true},
			slices.DeleteFunc(common(tcg, tcgCPU, microvm+inMemory, mmio,
				debugExit, memoryFD7+"share=off,readonly=on,rom=off", "-S", "-incoming defer"),
				func(a string) bool { return a == "-kernel /k" }),
		},
		"a clone of a template's own file, of which an older QEMU gets what it may read": {
			Config{Arch: AMD64, Accel: TCG, QEMU: QEMU{probed: probed{Version: "8.1.5"}}, State: []byte("x"), MemoryFile: true},
			slices.DeleteFunc(common(tcg, tcgCPU, microvm+inMemory, mmio,
				debugExit, memoryFD7+"share=off", "-S", "-incoming defer"),
				func(a string) bool { return a == "-kernel /k" }),
		},
		"a clone of a template with memory of its own": {
			Config{Arch: AMD64, Accel: TCG, State: []byte("x"), MemoryShared: true},
			slices.DeleteFunc(common(tcg, tcgCPU, microvm+inMemory, mmio,
				debugExit, memoryFD7+"share=on", "-S", "-incoming defer"),
				func(a string) bool { return a == "-kernel /k" }),
		},
		"stopped, for gdb": {
			Config{Arch: AMD64, Accel: KVM, Boot: Boot{Kernel: "/k"}, Paused: true},
			common("kvm", hostCPU, microvm, mmio, debugExit,
				"-S", "-chardev socket,id=gdb,fd=8,server=on,wait=off", "-gdb chardev:gdb"),
		},
		"amd64, kept when it crashes": {
			Config{Arch: AMD64, Accel: TCG, Boot: Boot{Kernel: "/k"}, Keep: true},
			common(tcg, tcgCPU, microvm, mmio,
				"-action shutdown=pause,panic=pause"),
		},
		"arm64, kept when it crashes": {
			Config{Arch: ARM64, Accel: TCG, Boot: Boot{Kernel: "/k"}, Keep: true},
			common(tcg, "max", virt, "-action shutdown=pause,panic=pause"),
		},
		"with a log": {
			Config{Arch: AMD64, Accel: TCG, Boot: Boot{Kernel: "/k"}, LogItems: "int,trace:virtio_blk_*"},
			common(tcg, tcgCPU, microvm, mmio, debugExit,
				"-d int,trace:virtio_blk_*"),
		},
		"arm64 on PCI": {
			Config{Arch: ARM64, Accel: TCG, Boot: Boot{Kernel: "/k", Disks: []string{"/d"}, PCI: true}},
			append(slices.DeleteFunc(common(tcg, "max", virt, semihosting),
				func(a string) bool { return strings.Contains(a, "virtio-net-device") }),
				disk0, diskPCI,
				netPCI),
		},
	}
}

func TestArgs(t *testing.T) {
	common := func(accel, cpu, machine string, more ...string) []string {
		return append([]string{"-nodefaults", "-no-user-config", "-no-reboot", "-display none", "-accel " + accel,
			"-cpu " + cpu, "-smp 1", "-m 256",
			"-M " + machine, "-kernel /k",
			"-netdev stream,id=net0,server=off,addr.type=fd,addr.str=3",
			"-device virtio-net-device,netdev=net0,mac=52:54:00:75:74:01",
			"-chardev socket,id=qmp,fd=4", "-mon chardev=qmp,mode=control",
			"-chardev socket,id=console,fd=5", "-serial chardev:console"}, more...)
	}
	var filtered QEMU
	filtered.Sandbox = true
	var withoutMicrovm QEMU
	withoutMicrovm.NoMicrovm = true
	sandbox := "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
	for name, c := range argsRows(filtered, common, sandbox, withoutMicrovm) {
		c.config.MemoryMB = 256
		at := inherited{nic: 3, qmp: 4, console: 5}
		if strings.Contains(name, "template") {
			at.memory = "/proc/self/fd/7"
		}
		if strings.Contains(name, "given") {
			at.kvm = 9
		}
		if strings.Contains(name, "gdb") {
			at.gdb = 8
		}
		got := pairs(arguments(c.config, at))
		for _, want := range c.want {
			i := slices.Index(got, want)
			if i < 0 {
				t.Errorf("%s: %q is missing", name, want)
				continue
			}
			got = slices.Delete(got, i, i+1)
		}
		for _, extra := range got {
			t.Errorf("%s: %q is too much", name, extra)
		}
	}
}

// A machine's processor and interrupt controller, by QEMU, accelerator, architecture and kernel.
func TestArgsByHost(t *testing.T) {
	const v2, best = "gic-version=2,", "gic-version=max,its=off,"
	type row struct {
		accel         Accel
		arch          Arch
		nanos         bool
		accelArg, cpu string
		gic           map[string]string // by QEMU's version; "" is every other
	}
	for _, c := range []row{
		{TCG, AMD64, false, "tcg,tb-size=128", "max,svm=off,la57=off,erms=off,fsrm=off", nil},
		{TCG, AMD64, true, "tcg,tb-size=128", "max,svm=off,la57=off,erms=off,fsrm=off", nil},
		{KVM, AMD64, false, "kvm", "host,vmx=off,svm=off,pmu=off", nil},
		{KVM, AMD64, true, "kvm", "host,vmx=off,svm=off,pmu=off", nil},
		{HVF, AMD64, false, "hvf", "host,vmx=off,svm=off,pmu=off", nil},
		{TCG, ARM64, false, "tcg,tb-size=128", "max", map[string]string{"": v2}},
		{TCG, ARM64, true, "tcg,tb-size=128", "max", map[string]string{"": v2}},
		{KVM, ARM64, false, "kvm", "host,pmu=off", map[string]string{"": best}},
		{KVM, ARM64, true, "kvm", "host,pmu=off", map[string]string{"": best}},
		{HVF, ARM64, false, "hvf", "host,pmu=off", map[string]string{"7.2.22": v2, "": best}},
		{HVF, ARM64, true, "hvf", "host,pmu=off", map[string]string{"7.2.22": v2, "": best}},
	} {
		for _, version := range []string{"7.2.22", "8.2.2", "9.2.0", "10.0.13", "11.1.2"} {
			config := Config{Arch: c.arch, Accel: c.accel, MemoryMB: 256,
				Boot: Boot{Kernel: "/k", PCI: c.nanos && c.arch == ARM64}}
			config.QEMU.Version = version
			machine := "-M microvm,rtc=on,isa-serial=on,mem-merge=off,dump-guest-core=off"
			if c.arch == ARM64 {
				gic, ok := c.gic[version]
				if !ok {
					gic = c.gic[""]
				}
				machine = "-M virt," + gic + "mem-merge=off,dump-guest-core=off"
			}
			got := pairs(arguments(config, inherited{nic: 3, qmp: 4, console: 5}))
			for _, want := range []string{"-accel " + c.accelArg, "-cpu " + c.cpu, machine} {
				if !slices.Contains(got, want) {
					t.Errorf("QEMU %s, %s, %s, nanos %v: no %q in %q", version, c.accel, c.arch, c.nanos, want, got)
				}
			}
		}
	}
}

// pairs joins each option with its value.
func pairs(args []string) []string {
	var out []string
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			out = append(out, a)
		} else {
			out[len(out)-1] += " " + a
		}
	}
	return out
}
