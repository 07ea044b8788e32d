package vmm

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testwait"
)

// orphanMemory distinguishes this test's machines from others, in MiB.
const orphanMemory = 71

// A process that starts machines is killed at any moment, even during a start: no machine outlives it.
func TestNoOrphans(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the death of a parent is noticed on Linux only")
	}
	if kernel := os.Getenv("UNITASK_TEST_STARTER"); kernel != "" {
		startForEver(t, kernel)
	}
	if testing.Short() {
		t.Skip("starts QEMU; not in -short")
	}
	if _, err := FindQEMU(t.Context(), AMD64, nil); err != nil {
		t.Skipf("%v", err)
	}
	kernel := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(kernel, haltKernel(), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestNoOrphans$")
		cmd.Env = append(os.Environ(), "UNITASK_TEST_STARTER="+kernel)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if !bufio.NewScanner(out).Scan() {
			t.Fatal("no machine was started")
		}
		time.AfterFunc(time.Duration(rand.IntN(30000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
	}
	var left []string
	if !testwait.Holds(3*time.Second, func() bool { left = orphans(); return len(left) == 0 }) {
		t.Errorf("left: %v", left)
	}
}

// orphans returns the processes of such machines.
func orphans() (pids []string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		text, _ := os.ReadFile(name)
		if bytes.Contains(text, fmt.Appendf(nil, "\x00-m\x00%d\x00", orphanMemory)) {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}

// startForEver starts machines in two threads until it is killed.
func startForEver(t *testing.T, kernel string) {
	qemu, err := FindQEMU(t.Context(), AMD64, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	for range 2 {
		go func() {
			for {
				ours, theirs, err := socketPair()
				if err != nil {
					done <- err
					return
				}
				m, err := Start(t.Context(), Config{QEMU: qemu, Arch: AMD64, Accel: TCG, MemoryMB: orphanMemory,
					Boot: Boot{Kernel: kernel}, NIC: theirs})
				if err != nil {
					done <- err
					return
				}
				fmt.Println("started")
				m.Close()
				ours.Close()
				theirs.Close()
			}
		}()
	}
	t.Fatal(<-done)
}
