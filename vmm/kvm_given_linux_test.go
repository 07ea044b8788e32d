package vmm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/vmm/jail"
)

// standIn starts a script in the place of a QEMU, which says what it was given, and returns that:
// its arguments, then what each descriptor is.
func standIn(t *testing.T, q QEMU, cfg Config) (args string, files []string) {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) { // QEMU's user must reach it
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// ls would list the descriptor that it lists them by.
	q.Path = filepath.Join(dir, "qemu")
	if err := os.WriteFile(q.Path, []byte(`#!/bin/sh
echo "$*" >&2
for n in 3 4 5 6 7 8 9 10 11 12; do echo "$n $(readlink /proc/$$/fd/$n)" >&2; done
`), 0o755); err != nil {
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
	lines := strings.Split(strings.TrimSpace(exit.Stderr), "\n")
	return lines[0], lines[1:]
}

// A QEMU that can is given KVM's device, opened; an older one opens it.
func TestKVMGiven(t *testing.T) {
	device := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		version string
		accel   Accel
		given   bool
	}{{"7.2.22", KVM, false}, {"8.1.5", KVM, false}, {"8.2.0", KVM, true}, {"10.0.13", KVM, true}, {"11.1.2", KVM, true}, {"10.0.13", TCG, false}} {
		t.Run(fmt.Sprintf("%s %s", c.version, c.accel), func(t *testing.T) {
			var q QEMU
			q.Version = c.version
			args, files := standIn(t, q, Config{Arch: AMD64, Accel: c.accel, kvm: device})
			var number string
			if m := regexp.MustCompile(`-add-fd fd=(\d+),set=1 `).FindStringSubmatch(args); m != nil {
				number = m[1]
			}
			if (number != "") != c.given || strings.Contains(args, "-accel kvm,device=/dev/fdset/1 ") != c.given {
				t.Errorf("arguments: %s", args)
			}
			there := slices.IndexFunc(files, func(line string) bool { return strings.HasSuffix(line, " "+device) })
			if (there >= 0) != c.given || there >= 0 && files[there] != number+" "+device {
				t.Errorf("fd=%s, and it has %q", number, files)
			}
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

// Where root starts a QEMU that opens the device itself, QEMU's own user must be able to.
func TestKVMUsable(t *testing.T) {
	for name, c := range map[string]struct {
		mode    os.FileMode
		group   int
		version string
		uid     int
		says    string // "" where it can be used
	}{
		"everybody's":                        {0o666, 0, "7.2.22", 0, ""},
		"its group's":                        {0o660, 107, "7.2.22", 0, ""},
		"its group may read only":            {0o640, 107, "7.2.22", 0, "mode is 0640 and its group 107"},
		"root's group's":                     {0o660, 0, "7.2.22", 0, "mode is 0660 and its group 0"},
		"root's":                             {0o600, 0, "8.1.5", 0, "QEMU 8.1.5, which root starts"},
		"root's, for one that is given it":   {0o600, 0, "8.2.0", 0, ""},
		"root's, and it is another's QEMU":   {0o600, 0, "7.2.22", 1000, ""}, // who could open it
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
	if err := kvmUsable(QEMU{}, "/nowhere/kvm", 0); err == nil || !strings.Contains(err.Error(), "/nowhere/kvm does not exist") {
		t.Error(err)
	}
}
