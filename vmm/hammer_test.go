package vmm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// hammerTime is how long the hostile guest runs. $UNITASK_HAMMER is another duration, for hours, and
// $UNITASK_HAMMER_SEED the first seed (hack/hammer).
const hammerTime = 10 * time.Second

// hammerEach is how long one machine runs: long enough for thousands of rounds, short enough for several seeds.
const hammerEach = 4 * time.Second

// hammerLeast is a machine's minimum time: even a slow one has started by then.
const hammerLeast = 2 * time.Second

// maxHammered limits the host memory of a machine of 64 MiB, whatever its guest does: its memory, a translation buffer
// of 128 MiB, QEMU itself.
const maxHammered = 420 << 20

// A test guest in ring 0 attacks the devices of real machines at random. It uses ports, memory of devices, and
// virtqueues with false lengths, loops, indirect tables and indices. Only the host is checked. A machine may end; then
// another one starts with the next seed.
func TestAttackHammer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts QEMU; not in -short")
	}
	qemu, err := FindQEMU(t.Context(), AMD64, nil)
	if err != nil {
		t.Skipf("%v", err)
	}
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skipf("the guest is made by gcc: %v", err)
	}
	dir := t.TempDir()
	kernel, disk := filepath.Join(dir, "hammer"), filepath.Join(dir, "disk")
	if out, err := exec.Command(compiler, "-m32", "-O1", "-ffreestanding", "-nostdlib", "-static", "-fno-pic", "-fno-pie",
		"-no-pie", "-fno-stack-protector",
		"-fcf-protection=none", "-Wl,-Ttext=0x100000,--build-id=none,-N", "-o", kernel,
		"testdata/hammer.c").CombinedOutput(); err != nil {
		t.Skipf("gcc makes no program of 32 bits here: %v: %s", err, out)
	}
	content := bytes.Repeat([]byte("a disk that is read-only "), 1<<16)
	if err := os.WriteFile(disk, content, 0o644); err != nil {
		t.Fatal(err)
	}
	last := hammerTime
	if text := os.Getenv("UNITASK_HAMMER"); text != "" {
		if last, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint32()
	if text := os.Getenv("UNITASK_HAMMER_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		seed = uint32(given)
	}
	t.Logf("seeds begin at %d", seed)
	before := openFiles(t)
	machines, rounds := 0, 0
	ends := map[string]int{}
	for deadline := time.Now().Add(last); time.Until(deadline) > hammerLeast || machines == 0; seed++ {
		h := hammer(t, qemu, Boot{Kernel: kernel, Append: strconv.FormatUint(uint64(seed), 10), Disks: []string{disk},
			MachineOptions: "ioapic2=off"}, min(time.Until(deadline), hammerEach))
		machines++
		rounds += h.rounds
		if ends[h.end]++; h.end != stillAtIt {
			t.Logf("seed %d: %s", seed, h.end)
		}
		if h.denied != "" {
			t.Errorf("seed %d: the jail ended QEMU for %s", seed, h.denied)
		}
		if h.memory > maxHammered {
			t.Errorf("seed %d: %d MiB of memory", seed, h.memory>>20)
		}
		if !h.began {
			t.Errorf("seed %d: the guest did not begin: %s", seed, h.end)
		}
	}
	t.Logf("%d machines, %d rounds of 200 acts at least; ends: %v", machines, rounds, ends)
	if rounds == 0 {
		t.Error("no machine came far")
	}
	seen := "nothing"
	if now, err := os.ReadFile(disk); err != nil || !bytes.Equal(now, content) {
		seen = "the disk"
	}
	attack.Check(t, "a guest in ring 0 hammers its devices: what changes outside", "nothing", seen)
	seen = "nothing"
	if after := openFiles(t); after != before {
		seen = fmt.Sprintf("%d descriptors", after-before)
	}
	attack.Check(t, "a guest in ring 0 hammers its devices: what is left behind", "nothing", seen)
}

// stillAtIt is the end of a machine that its guest did not end.
const stillAtIt = "still at it"

type hammered struct {
	began  bool
	rounds int
	end    string // of the machine: "killed by us", "signal: aborted", …
	denied string
	memory int64 // the peak memory of its process
}

// hammer runs one machine for a while.
func hammer(t *testing.T, qemu QEMU, boot Boot, last time.Duration) (h hammered) {
	t.Helper()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	var console lockedBuffer
	m, err := Start(t.Context(), Config{QEMU: qemu, Arch: AMD64, Accel: TCG, MemoryMB: 64, Boot: boot, NIC: theirs,
		Console: &console})
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	go noise(ours)
	late := time.NewTimer(last)
	defer late.Stop()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for running := true; running; {
		select {
		case <-m.Exited():
			exit, err := m.Wait(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			h.end, h.denied = exit.Err().Error(), exit.Denied
			running = false
		case <-late.C:
			h.end = stillAtIt
			running = false
		case <-look.C:
			h.memory = max(h.memory, resident(m.Pid()))
		}
	}
	m.Close()
	text := console.String()
	h.began = strings.Contains(text, "hammer ")
	if last := regexp.MustCompile(`round (\d+)\n`).FindAllStringSubmatch(text, -1); len(last) > 0 {
		h.rounds, _ = strconv.Atoi(last[len(last)-1][1])
	}
	return h
}

// noise sends frames of any length to the guest, so that receive queues are used. It discards the guest's frames.
func noise(conn net.Conn) {
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	frame := make([]byte, 4+9000)
	rate := time.NewTicker(time.Millisecond)
	defer rate.Stop()
	for range rate.C {
		n := rand.IntN(9000)
		copy(frame, []byte{0, 0, byte(n >> 8), byte(n)})
		if _, err := conn.Write(frame[:4+n]); err != nil {
			return
		}
	}
}

// resident returns a process's memory, 0 after its end.
func resident(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// lockedBuffer is written by one goroutine and read by another.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
