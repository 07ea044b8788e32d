package vmm

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// A machine runs, stops and continues with KVM in its jail, whose filter lists KVM's requests. If QEMU's user may not
// open /dev/kvm, such a machine does not exist.
func TestKVM(t *testing.T) {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		t.Skipf("no KVM: %v", err)
	}
	m, err := startQEMU(t, Config{Arch: AMD64, Accel: KVM}, haltKernel())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	monitor := func(command string, args any, reply any) {
		t.Helper()
		err := m.Monitor.Do(ctx, command, args, reply)
		if err == nil {
			return
		}
		if exit, waitErr := m.Wait(ctx); waitErr == nil {
			err = exit.Err()
		}
		t.Fatalf("%s: %v", command, err)
	}
	if err := m.Monitor.ConnectContext(ctx); err != nil {
		exit, waitErr := m.Wait(ctx)
		for _, why := range []string{"Could not access KVM", "MSR", "not supported"} {
			if waitErr == nil && strings.Contains(exit.Stderr, why) && exit.Denied == "" {
				t.Skipf("KVM can't be used here: %s", exit.Stderr)
			}
		}
		t.Fatalf("%v: %v", err, exit.Err())
	}
	for range 3 {
		var registers string
		monitor("human-monitor-command", map[string]string{"command-line": "info registers"}, &registers)
		if !strings.Contains(registers, "RIP=") && !strings.Contains(registers, "EIP=") {
			t.Errorf("%.200s", registers)
		}
		monitor("stop", nil, nil)
		monitor("cont", nil, nil)
	}
	monitor("system_reset", nil, nil)
	if exit, err := m.Status(); err == nil {
		t.Errorf("it ended: %+v", exit)
	}
}
