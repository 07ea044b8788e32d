package vmm

import (
	"slices"
	"strings"
	"testing"
)

// Every argument is expected, and nothing else is there: what a test does not
// name can't slip into the command line of a machine that holds hostile code.
func TestArgs(t *testing.T) {
	common := func(accel, cpu, machine string, more ...string) []string {
		return append([]string{"-nodefaults", "-no-user-config", "-no-reboot", "-display none", "-accel " + accel, "-cpu " + cpu, "-smp 1", "-m 256",
			"-M " + machine, "-kernel /k",
			"-netdev stream,id=net0,server=off,addr.type=fd,addr.str=3", "-device virtio-net-device,netdev=net0,mac=52:54:00:75:74:01",
			"-chardev socket,id=qmp,fd=4", "-mon chardev=qmp,mode=control",
			"-chardev socket,id=console,fd=5", "-serial chardev:console"}, more...)
	}
	sandbox := "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
	for name, c := range map[string]struct {
		spec Spec
		want []string
	}{
		"amd64 tcg, everything": {
			Spec{Arch: AMD64, Accel: TCG, Sandbox: true, Boot: Boot{Kernel: "/k", Initrd: "/i", Append: "a b", Disks: []string{"/d", "/x,y"}, MachineOptions: "acpi=on"}},
			common("tcg,tb-size=128", "max,svm=off", "microvm,rtc=on,isa-serial=on,acpi=on,mem-merge=off,dump-guest-core=off", "-global virtio-mmio.force-legacy=false",
				"-device isa-debug-exit,iobase=0x501,iosize=4", sandbox, "-initrd /i", "-append a b",
				"-blockdev driver=raw,node-name=disk0,read-only=on,file.driver=file,file.locking=off,file.filename=/d", "-device virtio-blk-device,drive=disk0",
				"-blockdev driver=raw,node-name=disk1,read-only=on,file.driver=file,file.locking=off,file.filename=/x,,y", "-device virtio-blk-device,drive=disk1"),
		},
		"amd64 kvm": {
			Spec{Arch: AMD64, Accel: KVM, Boot: Boot{Kernel: "/k"}},
			common("kvm", "host,vmx=off,svm=off,pmu=off", "microvm,rtc=on,isa-serial=on,mem-merge=off,dump-guest-core=off", "-global virtio-mmio.force-legacy=false", "-device isa-debug-exit,iobase=0x501,iosize=4"),
		},
		"arm64 tcg": {
			Spec{Arch: ARM64, Accel: TCG, Sandbox: true, Boot: Boot{Kernel: "/k"}},
			common("tcg,tb-size=128", "max", "virt,gic-version=2,mem-merge=off,dump-guest-core=off", "-semihosting-config enable=on,target=native", sandbox),
		},
		"arm64 kvm": {
			Spec{Arch: ARM64, Accel: KVM, Boot: Boot{Kernel: "/k"}},
			common("kvm", "host,pmu=off", "virt,gic-version=2,mem-merge=off,dump-guest-core=off", "-semihosting-config enable=on,target=native"),
		},
		"amd64 hvf": {
			Spec{Arch: AMD64, Accel: HVF, Boot: Boot{Kernel: "/k"}},
			common("hvf", "host,vmx=off,svm=off,pmu=off", "microvm,rtc=on,isa-serial=on,mem-merge=off,dump-guest-core=off", "-global virtio-mmio.force-legacy=false",
				"-device isa-debug-exit,iobase=0x501,iosize=4"),
		},
		"arm64 hvf": {
			Spec{Arch: ARM64, Accel: HVF, Boot: Boot{Kernel: "/k"}},
			common("hvf", "host,pmu=off", "virt,gic-version=2,mem-merge=off,dump-guest-core=off", "-semihosting-config enable=on,target=native"),
		},
		"a template in the making": {
			Spec{Arch: AMD64, Accel: TCG, Boot: Boot{Kernel: "/k"}, MemoryPath: "/proc/self/fd/7", MemoryShared: true},
			common("tcg,tb-size=128", "max,svm=off", "microvm,rtc=on,isa-serial=on,mem-merge=off,dump-guest-core=off,memory-backend=mem", "-global virtio-mmio.force-legacy=false",
				"-device isa-debug-exit,iobase=0x501,iosize=4", "-object memory-backend-file,id=mem,size=256M,mem-path=/proc/self/fd/7,share=on"),
		},
		"a clone": {
			Spec{Arch: AMD64, Accel: TCG, Boot: Boot{MachineOptions: "acpi=on"}, MemoryPath: "/proc/self/fd/7", Incoming: true},
			slices.DeleteFunc(common("tcg,tb-size=128", "max,svm=off", "microvm,rtc=on,isa-serial=on,acpi=on,mem-merge=off,dump-guest-core=off,memory-backend=mem", "-global virtio-mmio.force-legacy=false",
				"-device isa-debug-exit,iobase=0x501,iosize=4", "-object memory-backend-file,id=mem,size=256M,mem-path=/proc/self/fd/7,share=off", "-incoming defer"),
				func(a string) bool { return a == "-kernel /k" }),
		},
		"arm64 on PCI": {
			Spec{Arch: ARM64, Accel: TCG, Boot: Boot{Kernel: "/k", Disks: []string{"/d"}, PCI: true}},
			append(slices.DeleteFunc(common("tcg,tb-size=128", "max", "virt,gic-version=2,mem-merge=off,dump-guest-core=off", "-semihosting-config enable=on,target=native"),
				func(a string) bool { return strings.Contains(a, "virtio-net-device") }),
				"-blockdev driver=raw,node-name=disk0,read-only=on,file.driver=file,file.locking=off,file.filename=/d", "-device virtio-blk-pci,drive=disk0",
				"-device virtio-net-pci,netdev=net0,mac=52:54:00:75:74:01"),
		},
	} {
		c.spec.MemoryMB, c.spec.NetFD, c.spec.QMPFD, c.spec.ConsoleFD = 256, 3, 4, 5
		got := pairs(Args(c.spec))
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
