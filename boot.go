package unitask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

// Deadlines of a boot, until the guest rings its bell.
const (
	// hardwareProbe: on an accelerator that is not known to work here. One that
	// works needs half a second; a broken KVM often hangs.
	hardwareProbe = 4 * time.Second
	// bootDeadline: on one that works. A boot takes one to three seconds under
	// TCG, several times that on a machine that is busy.
	bootDeadline = 30 * time.Second
	// connectDeadline bounds the seed, the dial and the start of the code.
	connectDeadline = 30 * time.Second
	// cloneDeadline bounds a restore, and a clone's answer after it: beyond that
	// it is not worth waiting for.
	cloneDeadline = 5 * time.Second
)

// booted is a machine whose guest waits for its code, and the network around it.
type booted struct {
	kernel  image.Kernel
	clone   bool // of a template; else booted for this run
	pooled  bool // a clone that stood ready
	accel   vmm.Accel
	qemu    vmm.QEMU
	machine *vmm.Machine
	network *netstack.Network
	console *console
	failed  func(error) // is told that the clone does not answer
	once    sync.Once
}

// machine returns a machine whose guest waits for its code: one that stands ready, a
// clone of a template where there is one, else freshly booted.
func (rt *Runtime) machine(ctx context.Context, im *image.Image, code program, memoryMB int, network netstack.Config, console io.Writer) (*booted, error) {
	if !code.cold && vmm.CanClone {
		b, err := rt.clone(ctx, im, memoryMB, code.fresh, network, console)
		if err == nil || ctx.Err() != nil {
			return b, err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			rt.opts.Events(Event{EventRetry, err.Error() + "; booting instead"})
		}
	}
	return rt.boot(ctx, im, memoryMB, network, console)
}

// boot boots an image on the best accelerator that works, and remembers which.
func (rt *Runtime) boot(ctx context.Context, im *image.Image, memoryMB int, network netstack.Config, console io.Writer) (*booted, error) {
	arch := vmm.Arch(im.Arch)
	qemu, err := vmm.FindQEMU(ctx, arch, rt.memo)
	if err != nil {
		return nil, err
	}
	host := vmm.ThisHost()
	candidates, _, err := host.Candidates(arch, rt.opts.Accel)
	if err != nil {
		return nil, err
	}
	key := accelKey(qemu, im)
	known, _ := rt.memo.Get(key)
	if rt.opts.Accel == vmm.Auto {
		candidates = knownFirst(candidates, vmm.Accel(known))
	}
	var failures []error
	for _, accel := range candidates {
		tries, deadline := 2, bootDeadline
		if accel != vmm.TCG && string(accel) != known {
			deadline = hardwareProbe
			if rt.opts.Accel == vmm.Auto {
				tries = 1
			}
		}
		for try := range tries {
			b, err := rt.bootOnce(ctx, machineSpec{image: im, qemu: qemu, accel: accel, memoryMB: memoryMB}, deadline, nil, network, console)
			if err == nil {
				rt.memo.Put(key, string(accel))
				return b, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
			failures = append(failures, fmt.Errorf("%s: %w", accel, err))
			if try+1 < tries && errors.Is(err, context.DeadlineExceeded) {
				rt.opts.Events(Event{EventRetry, failures[len(failures)-1].Error()})
				continue
			}
			break
		}
		rt.opts.Events(Event{EventAccel, failures[len(failures)-1].Error()})
	}
	err = errors.Join(failures...)
	if rt.opts.Accel != vmm.Auto && rt.opts.Accel != vmm.TCG {
		err = fmt.Errorf("accelerator %w; --accel auto picks one that works, --accel tcg works everywhere", err)
	}
	return nil, err
}

// knownFirst moves the accelerator that worked before to the front; those that
// were tried before it then are not tried again.
func knownFirst(candidates []vmm.Accel, known vmm.Accel) []vmm.Accel {
	for i, a := range candidates {
		if a == known {
			return candidates[i:]
		}
	}
	return candidates
}

// accelKey names the answer to "which accelerator boots this": it is good for
// one QEMU, one image and one boot of the host.
func accelKey(q vmm.QEMU, im *image.Image) string {
	return "accel " + q.ID + " " + im.Digest + " " + bootID()
}

// bootID changes when the host is booted.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// bootOnce starts a machine and waits for the guest's bell.
func (rt *Runtime) bootOnce(ctx context.Context, spec machineSpec, deadline time.Duration, memory *os.File, cfg netstack.Config, serial io.Writer) (*booted, error) {
	network, err := netstack.New(cfg)
	if err != nil {
		return nil, err
	}
	b := newBooted(spec, network, serial)
	b.machine, err = vmm.Start(ctx, vmm.Config{
		QEMU: spec.qemu, Arch: vmm.Arch(spec.image.Arch), Accel: spec.accel, MemoryMB: spec.memoryMB,
		Memory: memory, Boot: rt.bootSpec(spec), NIC: network.GuestEnd(), Console: b.console,
	})
	network.ReleaseGuestEnd()
	if err != nil {
		b.close()
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if err := guest.Await(timed, network); err != nil {
		err = b.explain(err)
		b.close()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("the guest did not come up within %s: %w", deadline, err)
		}
		return nil, err
	}
	return b, nil
}

func newBooted(spec machineSpec, network *netstack.Network, serial io.Writer) *booted {
	return &booted{kernel: spec.image.Kernel, accel: spec.accel, qemu: spec.qemu, network: network, console: &console{record: serial, left: maxConsole}}
}

// bootSpec is what a kernel needs of its machine.
func (rt *Runtime) bootSpec(spec machineSpec) vmm.Boot {
	im := spec.image
	boot := vmm.Boot{Kernel: im.Path(image.KernelFile), Initrd: im.Path(image.InitrdFile), Disks: []string{im.Path(image.DiskFile)}}
	if im.Kernel == image.Nanos {
		if im.Arch == image.AMD64 {
			boot.MachineOptions = "ioapic2=off" // with it, the kernel hangs without a word
		} else {
			boot.PCI = true // its arm64 kernel knows virtio on PCI only
		}
		return boot // it takes no command line
	}
	serial := "ttyS0"
	if im.Arch == image.ARM64 {
		serial = "ttyAMA0"
	} else {
		boot.MachineOptions = "acpi=on"
	}
	// reboot=t, panic=-1: a stop is a reset, which -no-reboot turns into an end.
	// The rest saves boot time: no self-tests, no IPv6, no audit, no zeroing.
	args := []string{"console=" + serial, "quiet", "reboot=t", "panic=-1", "cryptomgr.notests", "ipv6.disable=1", "lsm=landlock",
		"audit=0", "init_on_alloc=0", "unitask.arg=" + node.HeapArg(spec.memoryMB)}
	if spec.fresh {
		args = append(args, "unitask.lazy")
	}
	if khz := rt.tscKHz(); khz > 0 && spec.accel == vmm.TCG && im.Arch == image.AMD64 {
		// Under TCG the guest's TSC is the host's. Without this, and without an
		// HPET, its calibration fails on a busy host and one boot in 15 hangs.
		args = append(args, "tsc_early_khz="+strconv.Itoa(khz))
	}
	boot.Append = strings.Join(args, " ")
	return boot
}

// tscKHz measures the host's time stamp counter once a boot.
func (rt *Runtime) tscKHz() int {
	key := "tsc " + bootID()
	if v, ok := rt.memo.Get(key); ok {
		khz, _ := strconv.Atoi(v)
		return khz
	}
	khz := vmm.HostTSCKHz()
	rt.memo.Put(key, strconv.Itoa(khz))
	return khz
}

// connect seeds the guest, puts the program in and starts it.
func (b *booted) connect(ctx context.Context, p *program) (*guest.Conn, error) {
	deadline := connectDeadline
	if b.clone {
		deadline = cloneDeadline
	}
	timed, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	conn, err := guest.Connect(timed, b.network)
	if err != nil {
		return nil, err
	}
	sending, cancelSending := context.WithTimeout(ctx, deadline+p.inputs.Patience())
	defer cancelSending()
	stop := context.AfterFunc(sending, func() { conn.Close() })
	defer stop()
	if err := p.put(sending, conn); err != nil {
		conn.Close()
		if sending.Err() != nil {
			err = context.Cause(sending)
		}
		return nil, err
	}
	return conn, nil
}

// afterlifeWait is how long a machine has to end after its guest is gone.
const afterlifeWait = 2 * time.Second

// afterlife finds out how the code ended when the agent could not tell: from the
// kernel's last words, or from the status that the machine ended with.
func (b *booted) afterlife(ctx context.Context, gone error) (guest.End, error) {
	timed, cancel := context.WithTimeout(ctx, afterlifeWait)
	defer cancel()
	exit, err := b.machine.Wait(timed)
	if err != nil {
		return guest.End{}, gone
	}
	if end, ok := guest.LastWords(string(b.console.tail)); ok {
		return end, nil
	}
	if b.kernel == image.Linux && exit.Guest >= 0 && exit.Guest < exitUnknown { // init's; Nanos's own are signals and faults
		return guest.End{Code: exit.Guest}, nil
	}
	return guest.End{}, gone
}

// exitUnknown and above are statuses that init and the kernels use for their
// own failures.
const exitUnknown = 125

// explain adds what the machine and its console have to say to an error of the
// conversation with it.
func (b *booted) explain(err error) error {
	if errors.As(err, new(*guest.ContentError)) {
		return err
	}
	var proto *guest.ProtocolError
	if errors.As(err, &proto) {
		return &GuestError{Reason: err.Error(), Err: err}
	}
	if b.machine == nil {
		return err
	}
	select {
	case <-b.machine.Exited():
	case <-time.After(100 * time.Millisecond):
		return err
	}
	b.network.Close()
	exit, waitErr := b.machine.Wait(context.Background())
	if waitErr != nil {
		return err
	}
	tail := consoleTail(b.console.tail)
	if exit.Stderr != "" || exit.Signal != "" {
		return fmt.Errorf("%w (%w)", exit.Err(), err)
	}
	reason := "the machine stopped before the code had ended"
	if tail != "" {
		reason += "; its console ends: " + lastLines(tail, 1)
		for line := range strings.Lines(tail) {
			if why, ok := strings.CutPrefix(line, "unitask: "); ok { // the agent's own
				reason = "the guest gave up: " + strings.TrimSpace(why)
			}
		}
	}
	return &GuestError{Reason: reason, Console: lastLines(tail, 20), Err: err}
}

// consoleTail is the console's text with control characters shown, so that a
// guest can't move the reader's cursor.
func consoleTail(raw []byte) string {
	var out strings.Builder
	for _, line := range strings.Split(strings.ReplaceAll(string(raw), "\r", ""), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		quoted := strconv.Quote(line)
		out.WriteString(quoted[1:len(quoted)-1] + "\n")
	}
	return strings.TrimSpace(out.String())
}

func lastLines(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (b *booted) drops() map[netstack.Drop]uint64 { return b.network.Stats() }

func (b *booted) describe(im *image.Image, memoryMB int) *record.Machine {
	return &record.Machine{
		Kernel: string(im.Kernel), KernelVersion: im.Version, Node: im.Node, Arch: string(im.Arch), ImageDigest: im.Digest,
		Accelerator: string(b.accel), QEMU: b.qemu.Version, Jail: b.machine.Jail, MemoryMB: memoryMB, Cloned: b.clone, Pooled: b.pooled,
	}
}

// close kills the machine and frees the network. It may be called again.
func (b *booted) close() {
	b.once.Do(func() {
		if b.machine != nil {
			b.machine.Close()
		}
		b.network.Close()
	})
}
