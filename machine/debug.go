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

// debugPatience is in place of every deadline of a machine that a debugger holds: its
// guest may be stopped at any time.
const debugPatience = 24 * time.Hour

// Debug is how a machine is started for a debugger: with its processor stopped.
type Debug struct {
	// GDB is a listening socket for gdb's remote protocol; one client at a time.
	GDB *os.File
	// NoJail has QEMU run as its starter.
	NoJail bool
	// Started is called when QEMU runs and its processor is stopped. It must not block.
	Started func(*Debugger)
}

// Debugger holds a machine that was started for debugging. One goroutine at a time may
// use it; that it stops the machine, and replaces it, disturbs nobody else who uses the
// Machine.
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

// debugger starts the machine's QEMU for a debugger. Where there are memfds its memory is
// one, so that snapshots can be made of it.
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

// start starts a QEMU, on a snapshot's devices if they are given.
func (d *Debugger) start(ctx context.Context, memory *os.File, devices []byte) (*vmm.Machine, error) {
	cfg := vmm.Config{Memory: memory, MemoryShared: true, State: devices, NIC: d.nic, GDB: d.how.GDB, Console: d.m.console,
		Paused: true, NoJail: d.how.NoJail}
	cfg = d.source.config(d.m.Spec, cfg)
	if d.m.Spec.Image.Kernel == image.Linux {
		cfg.Boot.Append += " nokaslr" // the kernel's symbols are where its file has them
	}
	return vmm.Start(ctx, cfg)
}

// Machine returns what is debugged. Restore replaces its Monitor.
func (d *Debugger) Machine() *Machine { return d.m }

// maxSnapshots bounds what a debugger keeps: each is as large as what the guest has
// touched of its memory.
const maxSnapshots = 16

// Snapshots returns the names of those that were taken.
func (d *Debugger) Snapshots() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.snapshots))
}

// Snapshot stops the machine and keeps its memory and the state of its devices under a name. A machine of which one was
// taken has to continue before the next.
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

// Restore replaces the machine by what it was when a snapshot was taken, stopped. What
// the guest and the host have said to each other since is known to one of them only, so
// connections that were used since are lost.
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

// close frees what the debugger holds but the machine.
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
