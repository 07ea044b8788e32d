package vmm

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/digitalocean/go-qemu/qmp/raw"

	"github.com/unitask/unitask/vmm/jail"
)

// startQEMU starts this host's QEMU on a kernel, with 64 MiB and a network card whose other end nobody reads. Without
// such a QEMU it skips the test.
func startQEMU(t *testing.T, cfg Config, kernel []byte) (*Machine, error) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts QEMU; not in -short")
	}
	qemu, err := FindQEMU(t.Context(), cfg.Arch, nil)
	if err != nil {
		t.Skipf("%v", err)
	}
	file := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(file, kernel, 0o644); err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	defer theirs.Close()
	qemu.NoMicrovm = qemu.NoMicrovm || cfg.QEMU.NoMicrovm
	cfg.QEMU, cfg.MemoryMB, cfg.Boot.Kernel, cfg.NIC = qemu, 64, file, theirs
	m, err := Start(t.Context(), cfg)
	if err == nil {
		t.Cleanup(func() { m.Close() })
	}
	return m, err
}

// haltKernel is a multiboot kernel of three instructions: cli; hlt; jmp (Multiboot 0.6.96: the address fields give its
// place).
func haltKernel() []byte {
	const load = 0x100000
	header := []uint32{0x1BADB002, 0x00010000, 0xE4514FFE, load, load, load + 64, load + 64, load + 32}
	var k bytes.Buffer
	for _, v := range header {
		k.Write([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
	}
	k.Write([]byte{0xfa, 0xf4, 0xeb, 0xfc})
	k.Write(make([]byte, 64))
	return k.Bytes()
}

// QEMU's own messages are separated from its log, however the two are split.
func TestLogLines(t *testing.T) {
	var own, log strings.Builder
	l := &logLines{program: "qemu: ", own: &own, log: &log}
	for _, part := range []string{"int 1\nqe", "mu: it is", " broken\nvirtio", "_blk\n"} {
		_, _ = l.Write([]byte(part))
	}
	if own.String() != "qemu: it is broken\n" || log.String() != "int 1\nvirtio_blk\n" {
		t.Errorf("%q %q", own.String(), log.String())
	}
}

func TestMachine(t *testing.T) {
	m, err := startQEMU(t, Config{Arch: AMD64, Accel: TCG}, haltKernel())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := m.Monitor.ConnectContext(ctx); err != nil {
		t.Fatal(err)
	}
	q := raw.NewMonitor(m.Monitor)
	if st, err := q.QueryStatus(); err != nil || !st.Running {
		t.Errorf("%+v %v", st, err)
	}
	missing := slices.DeleteFunc(m.Jail.Missing(), func(l Layer) bool { // control groups, which a host may not give us
		return slices.Contains([]string{jail.LimitGroupMemory, jail.LimitTasks, jail.LimitCPU, jail.LimitIO}, l.Name)
	})
	if os.Getuid() == 0 && len(missing) > 0 {
		t.Errorf("%+v", missing)
	}
	limits, err := os.ReadFile("/proc/" + strconv.Itoa(m.Pid()) + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`core file size +1 +1 `, `open files +256 +256 `, `file size +0 +0 `,
		`address space +4362076160 +4362076160 `, `processes +128 +128 `} {
		if !regexp.MustCompile("(?m)^Max " + want).Match(limits) {
			t.Errorf("no limit on %s:\n%s", want, limits)
		}
	}
	if os.Getuid() == 0 { // its confinement, as the kernel sees it
		status, err := os.ReadFile("/proc/" + strconv.Itoa(m.Pid()) + "/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"NoNewPrivs:\t1", "CapEff:\t0000000000000000", "Seccomp:\t2",
			"CapBnd:\t0000000000000000"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("%s is not so:\n%s", want, status)
			}
		}
	}
	for range 3 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := syscall.Kill(m.Pid(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
	if exit, err := m.Wait(ctx); err != nil || exit.Signal != "killed" {
		t.Errorf("%+v %v", exit, err)
	}
}

func TestMachineBadKernel(t *testing.T) {
	m, err := startQEMU(t, Config{Arch: AMD64, Accel: TCG}, []byte("this is no kernel"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	exit, err := m.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var failed *ExitError
	if err := exit.Err(); !errors.As(err, &failed) || exit.Code == 0 || !strings.Contains(err.Error(), "kernel") {
		t.Errorf("%+v: %v", exit, err)
	}
	if err := m.Monitor.ConnectContext(ctx); err == nil {
		t.Error("connected to nobody")
	}
}

func TestMachineNoSuchFile(t *testing.T) {
	before := openFiles(t)
	for _, boot := range []Boot{{Kernel: "/nowhere"}, {Kernel: "/etc/passwd", Initrd: "/nowhere"},
		{Kernel: "/etc/passwd", Disks: []string{"/dev/null"}}, {Kernel: "/tmp"}} {
		if _, err := Start(t.Context(), Config{QEMU: QEMU{Path: "/bin/true"}, Arch: AMD64, Accel: TCG, MemoryMB: 64,
			Boot: boot}); err == nil {
			t.Errorf("%+v started", boot)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc on this system")
	}
	return len(fds)
}

func TestSocketPairIsPrivate(t *testing.T) {
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	if _, ok := ours.(*net.UnixConn); !ok {
		t.Errorf("%T", ours)
	}
}

// The cost of the jail: from Start to QMP's greeting and to the end, with it and without it, in turn in the same loop.
func BenchmarkJail(b *testing.B) {
	qemu, err := FindQEMU(b.Context(), AMD64, nil)
	if err != nil {
		b.Skipf("%v", err)
	}
	kernel := filepath.Join(b.TempDir(), "kernel")
	if err := os.WriteFile(kernel, haltKernel(), 0o644); err != nil {
		b.Fatal(err)
	}
	var began, greeted, ended [2]time.Duration
	rounds := 0
	for b.Loop() {
		for i, open := range []bool{true, false} {
			ours, theirs, err := socketPair()
			if err != nil {
				b.Fatal(err)
			}
			at := time.Now()
			m, err := Start(b.Context(), Config{QEMU: qemu, Arch: AMD64, Accel: TCG, MemoryMB: 64, Boot: Boot{Kernel: kernel},
				NIC: theirs, NoJail: open})
			if err != nil {
				b.Fatal(err)
			}
			began[i] += time.Since(at)
			if err := m.Monitor.ConnectContext(b.Context()); err != nil {
				b.Fatal(err)
			}
			greeted[i] += time.Since(at)
			at = time.Now()
			m.Close()
			ended[i] += time.Since(at)
			ours.Close()
			theirs.Close()
		}
		rounds++
	}
	for name, d := range map[string][2]time.Duration{"start": began, "greeting": greeted, "close": ended} {
		for i, how := range []string{"open", "jail"} {
			b.ReportMetric(d[i].Seconds()*1000/float64(rounds), how+"-ms/"+name)
		}
	}
}
