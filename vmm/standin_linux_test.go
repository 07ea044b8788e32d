package vmm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/vmm/jail"
)

// standIn starts a script instead of a QEMU, and returns how it ended.
func standIn(t *testing.T, q QEMU, cfg Config, script string) Exit {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) { // QEMU's user must be able to reach it
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	q.Path = filepath.Join(dir, "qemu")
	if err := errors.Join(os.WriteFile(q.Path, []byte("#!/bin/sh\n"+script), 0o755), os.Chmod(q.Path, 0o755)); err != nil {
		t.Fatal(err)
	}
	q.Program = jail.Program{Path: q.Path}
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	cfg.QEMU, cfg.MemoryMB, cfg.Boot.Kernel, cfg.NIC = q, 64, q.Path, theirs
	m, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	exit, err := m.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return exit
}

// The end of a machine distinguishes failures of QEMU from a status of the guest, and a warning is not a failure.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   Exit // Stderr is part of it
	}{
		"a status": {"exit 7", Exit{Code: 7, Guest: 3}},
		"a warning and a status": {"echo 'qemu-system-x86_64: warning: TCG does not support it' >&2; exit 7",
			Exit{Code: 7, Guest: 3, Stderr: "warning: TCG"}},
		"warnings and status 0": {"for n in 1 2 3; do echo 'qemu: warning: once more' >&2; done; exit 1",
			Exit{Code: 1, Guest: 0, Stderr: "warning"}},
		"a failure": {"echo 'qemu: -M virt: invalid' >&2; exit 1", Exit{Code: 1, Guest: -1, Stderr: "invalid"}},
		"a warning and a failure": {"echo 'qemu: warning: odd' >&2; echo 'qemu: invalid' >&2; exit 1",
			Exit{Code: 1, Guest: -1, Stderr: "invalid"}},
		"it is ended from inside": {"exit 0", Exit{Code: 0, Guest: -1}},
		"it aborts": {"echo 'qemu: failed to set MSR' >&2; exit 134",
			Exit{Code: 134, Guest: -1, Stderr: "MSR"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := standIn(t, QEMU{}, Config{Arch: AMD64, Accel: TCG}, c.script)
			if !strings.Contains(got.Stderr, c.want.Stderr) {
				t.Errorf("it said %q", got.Stderr)
			}
			if got.Stderr = c.want.Stderr; got != c.want {
				t.Errorf("%+v, not %+v", got, c.want)
			}
		})
	}
}

// A host whose KVM has no interrupt controller of version 2: both kernels get what exists. There is no ITS, because
// nanos handles no interrupt from one.
func TestNoGICv2(t *testing.T) {
	const refuses = `case "$*" in
*kvm*gic-version=2*) echo "qemu-system-aarch64: PMU: KVM does not support GICv2 emulation" >&2; exit 1 ;;
*kvm*gic-version=max,its=off*) exit 7 ;;
*gic-version=2*) exit 9 ;;
esac; exit 1`
	for _, c := range []struct {
		accel Accel
		nanos bool
		guest int
	}{{KVM, false, 3}, {KVM, true, 3}, {TCG, true, 4}} {
		var q QEMU
		q.Version = "7.2.22"
		got := standIn(t, q, Config{Arch: ARM64, Accel: c.accel, Boot: Boot{PCI: c.nanos}}, refuses)
		if got.Guest != c.guest {
			t.Errorf("%s, nanos %v: %+v", c.accel, c.nanos, got)
		}
	}
}

// A QEMU with support for it gets KVM's device opened; an older one opens it itself.
func TestAttackKVMGiven(t *testing.T) {
	device := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		version string
		accel   Accel
		given   bool
	}{{"7.2.22", KVM, false}, {"8.2.2", KVM, false}, {"9.0.0", KVM, true}, {"10.0.13", KVM, true}, {"11.1.2", KVM, true},
		{"10.0.13", TCG, false}} {
		t.Run(fmt.Sprintf("%s %s", c.version, c.accel), func(t *testing.T) {
			var q QEMU
			q.Version = c.version
			// ls would list the descriptor of its own listing.
			exit := standIn(t, q, Config{Arch: AMD64, Accel: c.accel, kvm: device},
				`echo "$*" >&2; for n in 3 4 5 6 7 8 9 10 11 12; do echo "$n $(readlink /proc/self/fd/$n)" >&2; done`)
			lines := strings.Split(strings.TrimSpace(exit.Stderr), "\n")
			args, files := lines[0], lines[1:]
			var number string
			if m := regexp.MustCompile(`-add-fd fd=(\d+),set=1 `).FindStringSubmatch(args); m != nil {
				number = m[1]
			}
			if (number != "") != c.given || strings.Contains(args, "-accel kvm,device=/dev/fdset/1 ") != c.given {
				t.Errorf("arguments: %s", args)
			}
			files = slices.DeleteFunc(files, func(line string) bool { return !strings.HasSuffix(line, " "+device) })
			want := "[]"
			if c.given {
				want = "[" + number + " DEVICE]"
			}
			got := strings.ReplaceAll(fmt.Sprint(files), device, "DEVICE")
			row := fmt.Sprintf("descriptors of KVM's device that a QEMU %s has, by %s", c.version, c.accel)
			attack.Check(t, row, want, got)
		})
	}
	q := QEMU{}
	q.Version = "10.0.13"
	_, err := Start(t.Context(), Config{QEMU: q, Arch: AMD64, Accel: KVM, NIC: must(t, device), kvm: device + "-not"})
	if err == nil || !strings.Contains(err.Error(), device+"-not") {
		t.Errorf("a device that is not there: %v", err)
	}
}

func must(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// If root starts a QEMU that opens the device itself, QEMU's own user must be able to open it.
func TestKVMUsable(t *testing.T) {
	for name, c := range map[string]struct {
		mode    os.FileMode
		group   int
		version string
		uid     int
		says    string // "" if it can be used
	}{
		"everybody's":                        {0o666, 0, "7.2.22", 0, ""},
		"its group's":                        {0o660, 107, "7.2.22", 0, ""},
		"its group may read only":            {0o640, 107, "7.2.22", 0, "mode is 0640 and its group 107"},
		"root's group's":                     {0o660, 0, "7.2.22", 0, "mode is 0660 and its group 0"},
		"root's":                             {0o600, 0, "8.2.2", 0, "QEMU 8.2.2, which root starts"},
		"root's, for one that is given it":   {0o600, 0, "9.0.0", 0, ""},
		"root's, and it is another's QEMU":   {0o600, 0, "7.2.22", 1000, ""}, // users who could open it
		"its group's, for one that is given": {0o660, 107, "10.0.13", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			device := filepath.Join(t.TempDir(), "kvm")
			if err := os.WriteFile(device, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(device, -1, c.group); err != nil {
				t.Skipf("only root gives files to any group: %v", err)
			}
			if err := os.Chmod(device, c.mode); err != nil {
				t.Fatal(err)
			}
			var q QEMU
			q.Version = c.version
			err := kvmUsable(q, device, c.uid)
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
	if err := kvmUsable(QEMU{}, "/nowhere/kvm", 0); err == nil ||
		!strings.Contains(err.Error(), "/nowhere/kvm does not exist") {
		t.Error(err)
	}
}
