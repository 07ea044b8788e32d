package machine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

// debugPatience replaces every deadline of a machine with a debugger: its guest may be stopped at any time.
const debugPatience = 24 * time.Hour

// Debug configures a machine that starts for a debugger, with its processor stopped.
type Debug struct {
	// GDB is a listening socket for gdb's remote protocol; one client at a time.
	GDB *os.File
	// NoJail runs QEMU as the user who starts it.
	NoJail bool
	// Started is called when QEMU runs and its processor is stopped. It must not block.
	Started func(*Debugger)
}

// Debugger controls a machine that was started for debugging. One goroutine at a time may use it. Stopping and
// replacing the machine does not disturb other users of the Machine.
type Debugger struct {
	source  *Source
	m       *Machine
	how     Debug
	started func(*Debugger)

	nic *os.File // QEMU's end of the network card's link, for the next QEMU

	mu        sync.Mutex
	memory    *os.File // the machine's
	snapshots map[string]*Snapshot
	closed    bool
}

// debugger starts the machine's QEMU for a debugger. Where memfds exist, the machine's memory is a memfd, so that
// snapshots are possible.
func (s *Source) debugger(ctx context.Context, m *Machine, how Debug) error {
	d := &Debugger{source: s, m: m, how: how, started: how.Started, snapshots: map[string]*Snapshot{}}
	if d.started == nil {
		d.started = func(*Debugger) {}
	}
	fd, err := unix.FcntlInt(m.network.GuestEnd().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("debug: %w", err)
	}
	d.nic = os.NewFile(uintptr(fd), "nic")
	if CanClone {
		if d.memory, err = NewMemory(int64(m.Spec.MemoryMB) << 20); err != nil {
			d.nic.Close()
			return err
		}
	}
	m.vm, err = d.start(ctx, d.memory, nil)
	if err != nil {
		d.nic.Close()
		if d.memory != nil {
			d.memory.Close()
		}
		return err
	}
	m.debug = d
	return nil
}

// start starts a QEMU, from a snapshot's device state if it is given.
func (d *Debugger) start(ctx context.Context, memory *os.File, devices []byte) (*vmm.Machine, error) {
	cfg := vmm.Config{Memory: memory, MemoryShared: true, State: devices, NIC: d.nic, GDB: d.how.GDB, Console: d.m.console,
		Paused: true, NoJail: d.how.NoJail}
	cfg = d.source.config(d.m.Spec, cfg)
	if d.m.Spec.Image.Kernel == image.Linux {
		cfg.Boot.Append += " nokaslr" // symbols then have the addresses in the kernel's file
	}
	return vmm.Start(ctx, cfg)
}

// Machine returns the debugged machine. Restore replaces its Monitor.
func (d *Debugger) Machine() *Machine { return d.m }

// maxSnapshots bounds the snapshots of a debugger: each takes as much memory as the guest has touched.
const maxSnapshots = 16

// Snapshots returns the names of the snapshots.
func (d *Debugger) Snapshots() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.snapshots))
}

// Snapshot stops the machine and saves its memory and device state under a name. Before the next snapshot, the
// machine has to continue.
func (d *Debugger) Snapshot(ctx context.Context, name string) error {
	if d.memory == nil {
		return errors.New("snapshot: this system has no memfd")
	}
	if len(d.Snapshots()) >= maxSnapshots {
		return fmt.Errorf("snapshot %q: there are %d already", name, maxSnapshots)
	}
	var devices []byte
	memory, err := newCopy(d.memory, func(to *os.File) (err error) {
		devices, err = capture(ctx, d.m.qemu(), d.memory, nil, to)
		return err
	})
	if err != nil {
		return fmt.Errorf("snapshot %q: %w", name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.snapshots[name]; old != nil {
		old.Memory.Close()
	}
	d.snapshots[name] = filled(memory, devices, time.Now())
	return nil
}

// Restore replaces the machine with a snapshot, stopped. Guest and host no longer agree on what they exchanged
// since the snapshot, so connections that were used since then are lost.
func (d *Debugger) Restore(ctx context.Context, name string) error {
	d.mu.Lock()
	snapshot := d.snapshots[name]
	d.mu.Unlock()
	if snapshot == nil {
		return fmt.Errorf("restore %q: there is no such snapshot; there are: %q", name, d.Snapshots())
	}
	memory, err := copyOf(snapshot.Memory)
	if err != nil {
		return fmt.Errorf("restore %q: %w", name, err)
	}
	vm, err := d.start(ctx, memory, snapshot.Devices)
	if err == nil {
		if err = vm.Load(ctx, snapshot.Devices); err != nil {
			vm.Close()
			if exit, e := vm.Status(); e == nil && exit.Stderr != "" {
				err = fmt.Errorf("%w: %s", err, strings.TrimSpace(exit.Stderr))
			}
		}
	}
	if err != nil {
		memory.Close()
		return fmt.Errorf("restore %q: %w", name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		vm.Close()
		memory.Close()
		return fmt.Errorf("restore %q: the machine is gone", name)
	}
	d.m.swap.Lock()
	vm, d.m.vm = d.m.vm, vm
	d.m.swap.Unlock()
	vm.Close()
	d.memory.Close()
	d.memory = memory
	return nil
}

// close frees the debugger's resources, except the machine.
func (d *Debugger) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.closed = true
	d.nic.Close()
	if d.memory != nil {
		d.memory.Close()
	}
	for _, s := range d.snapshots {
		s.Memory.Close()
	}
}
