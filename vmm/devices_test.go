package vmm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// devices are a machine's devices, by QEMU's names: the targets of hostile code. docs/security.md publishes the list.
var devices = map[board][]string{
	{AMD64, false, "acpi=on,pit=off,pic=off"}: {"acpi-ged-x86", "fw_cfg_io", "ioapic", "isa-debug-exit", "isa-serial",
		"isabus-bridge", "kvmvapic", "mc146818rtc",
		"virtio-blk-device", "virtio-mmio", "virtio-net-device"},
	{AMD64, false, "ioapic2=off"}: {"acpi-ged-x86", "fw_cfg_io", "ioapic", "isa-debug-exit", "isa-i8259", "isa-pit",
		"isa-serial", "isabus-bridge", "kvmvapic", "mc146818rtc",
		"virtio-blk-device", "virtio-mmio", "virtio-net-device"},
	{AMD64, true, ""}: {"ICH9-LPC", "fw_cfg_io", "i8257", "ioapic", "isa-debug-exit", "isa-i8259", "isa-pcspk", "isa-pit",
		"isa-serial", "kvmvapic", "mc146818rtc", "mch", "q35-pcihost",
		"virtio-blk-device", "virtio-blk-pci", "virtio-net-device", "virtio-net-pci"},
	{ARM64, false, ""}: {"arm-gicv2m", "arm_gic", "cfi.pflash01", "fw_cfg_mem", "gpex-pcihost", "gpex-root", "gpio-key",
		"pl011", "pl031", "pl061", "platform-bus-device",
		"virtio-blk-device", "virtio-blk-pci", "virtio-mmio", "virtio-net-device", "virtio-net-pci"},
}

type board struct {
	arch Arch
	q35  bool // of a QEMU without microvm
	// options are the options of the kernels linux and nanos (image.Boot).
	options string
}

var deviceLine = regexp.MustCompile(`(?m)^\s*dev: ([\w.,-]+), id`)

// A machine has the devices of the list and no others.
func TestAttackDevices(t *testing.T) {
	published, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for b, want := range devices {
		arch := b.arch
		for _, name := range want {
			if !strings.Contains(string(published), "`"+name+"`") {
				t.Errorf("docs/security.md does not name %s", name)
			}
		}
		if testing.Short() {
			continue
		}
		t.Run(strings.TrimSpace(fmt.Sprint(arch, map[bool]string{true: " q35"}[b.q35], " ", b.options)), func(t *testing.T) {
			disk := filepath.Join(t.TempDir(), "disk")
			kernel := haltKernel()
			if arch == ARM64 {
				kernel = make([]byte, 4096) // an Image without a header: its first instruction traps
			}
			if err := os.WriteFile(disk, make([]byte, 1<<20), 0o644); err != nil {
				t.Fatal(err)
			}
			var q QEMU
			q.NoMicrovm = b.q35
			m, err := startQEMU(t, Config{QEMU: q, Arch: arch, Accel: TCG,
				Boot: Boot{Disks: []string{disk}, PCI: arch == ARM64, MachineOptions: b.options}}, kernel)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := m.Monitor.ConnectContext(ctx); err != nil {
				t.Fatal(err)
			}
			var tree string
			if err := m.Monitor.Do(ctx, "human-monitor-command", map[string]string{"command-line": "info qtree"},
				&tree); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, dev := range deviceLine.FindAllStringSubmatch(tree, -1) {
				got = append(got, dev[1])
			}
			slices.Sort(got)
			got = slices.Compact(got)
			attack.Check(t, "devices that a guest meets, "+path.Base(t.Name()), strings.Join(want, " "), strings.Join(got, " "))
		})
	}
}

// hack/qemu-fuzz runs QEMU's own fuzzer on a microvm's devices, except for the exit device.
func TestAttackFuzzedDevices(t *testing.T) {
	text, err := os.ReadFile("../hack/qemu-fuzz")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("\nmachine="))
	script, _, found := strings.Cut(string(text), "\n#")
	if !found {
		t.Fatal("hack/qemu-fuzz has no machine=")
	}
	lacks, more := []string{}, []string{}
	args := arguments(Config{Arch: AMD64, Accel: TCG, MemoryMB: 64,
		Boot: Boot{Disks: []string{"/disk"}, MachineOptions: "acpi=on"}}, inherited{})
	for i, option := range args[:len(args)-1] {
		value := args[i+1]
		switch {
		case option == "-M":
			value, _, _ = strings.Cut(value, ","+memoryOptions)
		case option == "-device" && !strings.HasPrefix(value, "isa-debug-exit"):
			value, _, _ = strings.Cut(value, ",")
		case option == "-global":
		default:
			continue
		}
		if want := option + " " + value; !strings.Contains(script, want) {
			lacks = append(lacks, want)
		}
		script = strings.Replace(script, option+" ", "", 1)
	}
	attack.Check(t, "devices of a machine that QEMU's fuzzer does not try", "[]", fmt.Sprint(lacks))
	for _, option := range []string{"-M ", "-device ", "-global "} {
		if strings.Contains(script, option) {
			more = append(more, option)
		}
	}
	attack.Check(t, "what QEMU's fuzzer tries that machines have not", "[]", fmt.Sprint(more))
}
