package vmm

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// devices are what a machine has, by QEMU's names: what hostile code can hit. docs/security.md
// publishes the list.
var devices = map[Arch][]string{
	AMD64: {"acpi-ged-x86", "fw_cfg_io", "ioapic", "isa-debug-exit", "isa-i8259", "isa-pit", "isa-serial", "isabus-bridge", "kvmvapic", "mc146818rtc",
		"virtio-blk-device", "virtio-mmio", "virtio-net-device"},
	ARM64: {"arm-gicv2m", "arm_gic", "cfi.pflash01", "fw_cfg_mem", "gpex-pcihost", "gpex-root", "gpio-key", "pl011", "pl031", "pl061", "platform-bus-device",
		"virtio-blk-device", "virtio-blk-pci", "virtio-mmio", "virtio-net-device", "virtio-net-pci"},
}

var deviceLine = regexp.MustCompile(`(?m)^\s*dev: ([\w.,-]+), id`)

// A machine has the devices of the list and no others.
func TestDevices(t *testing.T) {
	published, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for arch, want := range devices {
		for _, name := range want {
			if !strings.Contains(string(published), "`"+name+"`") {
				t.Errorf("docs/security.md does not name %s", name)
			}
		}
		if testing.Short() {
			continue
		}
		t.Run(string(arch), func(t *testing.T) {
			disk := filepath.Join(t.TempDir(), "disk")
			kernel := haltKernel()
			if arch == ARM64 {
				kernel = make([]byte, 4096) // an Image without a header: its first instruction traps
			}
			if err := os.WriteFile(disk, make([]byte, 1<<20), 0o644); err != nil {
				t.Fatal(err)
			}
			m, err := startQEMU(t, Config{Arch: arch, Accel: TCG, Boot: Boot{Disks: []string{disk}, PCI: arch == ARM64, MachineOptions: map[Arch]string{AMD64: "acpi=on"}[arch]}}, kernel)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := m.Monitor.ConnectContext(ctx); err != nil {
				t.Fatal(err)
			}
			var tree string
			if err := m.Monitor.Do(ctx, "human-monitor-command", map[string]string{"command-line": "info qtree"}, &tree); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, dev := range deviceLine.FindAllStringSubmatch(tree, -1) {
				got = append(got, dev[1])
			}
			slices.Sort(got)
			if got = slices.Compact(got); !slices.Equal(got, want) {
				t.Errorf("QEMU has %q\nexpected %q", got, want)
			}
		})
	}
}
