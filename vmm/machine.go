package vmm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/socketpair"
	"github.com/unitask/unitask/internal/tail"
	"github.com/unitask/unitask/vmm/jail"
)

// Machine is a running QEMU. Close ends it. Every other method may be called from any goroutine.
type Machine struct {
	Monitor *Monitor
	Jail    Jail // layers and limits of the process

	pid     int
	kill    func()
	seal    func() error // nil for an adopted machine, which its lender has sealed
	state   net.Conn     // the device state, to QEMU's descriptor stateFD; nil for an adopted machine
	stderr  tail.Buffer
	console net.Conn
	copied  chan struct{} // closed when the console's reader has finished
	exited  chan struct{} // closed when the process is reaped
	status  Exit

	readOnce, closeOnce sync.Once
}

// Start starts QEMU and returns once the process runs. It does not wait for QMP, which starts while the guest boots
// (Monitor.Connect waits).
func Start(ctx context.Context, cfg Config) (_ *Machine, err error) {
	var clean cleanups
	defer func() {
		if err != nil {
			clean.run()
		}
	}()
	// The sockets of the monitor, the console and the device state.
	var ours [3]net.Conn
	var theirs [3]*os.File
	for i := range ours {
		if ours[i], theirs[i], err = socketPair(); err != nil {
			return nil, fmt.Errorf("start machine: %w", err)
		}
		clean.push(func() { ours[i].Close() })
		defer theirs[i].Close()
	}
	m := &Machine{console: ours[1], state: ours[2], copied: make(chan struct{}), exited: make(chan struct{})}
	m.stderr.Size = maxStderr
	kvm := usesKVM(cfg.QEMU, cfg.Accel)
	files, opened, at, err := inherit(&cfg, theirs, kvm)
	defer func() {
		for _, f := range files[opened:] {
			f.Close()
		}
	}()
	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	if jail.CanFilter() && !cfg.NoJail && len(cfg.QEMU.Program.Files) > 0 {
		cfg.QEMU.Sandbox = false // it refuses less than the jail's filter, and names nothing
	}
	var stderr io.Writer = &m.stderr
	if cfg.LogItems != "" {
		stderr = &logLines{program: filepath.Base(cfg.QEMU.Path) + ": ", own: &m.stderr, log: cfg.Log}
	}
	var given *os.File
	if cfg.MemoryFile && !cfg.QEMU.opensReadOnly() {
		given = cfg.Memory
	}
	process, err := jail.Start(jail.Spec{
		Given:   given,
		Program: cfg.QEMU.Program, Args: arguments(cfg, at), Files: files, Reads: cfg.Boot.paths(), Stderr: stderr,
		Open: cfg.NoJail,
		// Each malloc arena reserves 64 MiB of address space, which is limited. On a host with many cores, a machine would
		// create many arenas.
		Env:      []string{"PATH=/usr/bin:/bin", "MALLOC_ARENA_MAX=2"},
		FileSize: fileSize(cfg), KVM: kvm, Listens: cfg.GDB != nil,
		AddressSpace: uint64(cfg.MemoryMB)<<20 + addressSpaceExtra, SmallPages: cfg.Accel == TCG && cfg.State != nil,
		Bounds: jail.Bounds{Memory: int64(cfg.MemoryMB) << 20, CPUs: cmp.Or(cfg.CPUs, float64(processors(cfg)+1)),
			IO: diskRate},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.QEMU.Path, err)
	}
	if err := holds(process, cfg.MemoryFile, given != nil); err != nil {
		process.Kill()
		process.Wait()
		return nil, fmt.Errorf("start machine: %w", err)
	}
	go func() {
		state := process.Wait()
		m.reaped(state, process)
	}()
	if cfg.QEMU.Sandbox {
		process.Report.Layers = append(process.Report.Layers,
			jail.Hold{Name: jail.QEMUSeccomp, Holds: true, Detail: "four groups of system calls"})
	}
	m.Jail, m.pid, m.kill, m.seal = process.Report, process.Pid, process.Kill, process.Seal
	m.Monitor = NewMonitor(ours[0])
	m.Monitor.ready = m.Seal
	if cfg.Console != nil {
		m.ReadConsole(cfg.Console)
	}
	return m, nil
}

// inherit returns the files that QEMU inherits as descriptors from 3 on, and their numbers in QEMU. The caller closes
// the files from opened on. inherit changes the paths of cfg.Boot to those that QEMU opens.
func inherit(cfg *Config, theirs [3]*os.File, kvm jail.KVM) (files []*os.File, opened int, at inherited, err error) {
	files = append([]*os.File{cfg.NIC}, theirs[:]...)
	at = inherited{nic: 3, qmp: 4, console: 5}
	if cfg.Memory != nil {
		files = append(files, cfg.Memory)
		at.memory = fmt.Sprintf("/proc/self/fd/%d", len(files)+2)
	}
	if cfg.GDB != nil {
		files = append(files, cfg.GDB)
		at.gdb = len(files) + 2
	}
	opened = len(files)
	if kvm == jail.KVMPassed {
		device, err := os.OpenFile(cmp.Or(cfg.kvm, jail.KVMDevice), os.O_RDWR, 0)
		if err != nil {
			return files, opened, at, err
		}
		files = append(files, device)
		at.kvm = len(files) + 2
	}
	if onQ35(*cfg) && cfg.Boot.BIOS || cfg.State != nil &&
		!onQ35(*cfg) { // q35's state contains its kernel's loader, so a clone needs the same one
		cfg.Boot.Kernel, cfg.Boot.Initrd, cfg.Boot.Append = "", "", ""
	}
	cfg.Boot, files, err = openBoot(cfg.Boot, files)
	return files, opened, at, err
}

// Seal keeps QEMU from opening any more files, even its own. Call it when all of QEMU is set up: when the guest runs,
// or when the monitor has answered, which seals QEMU by itself. QEMU's greeting is earlier than that. An error ends the
// machine. Seal may be called more than once.
func (m *Machine) Seal() error {
	if m.seal == nil {
		return nil
	}
	err := m.seal()
	if err != nil {
		m.kill()
		err = fmt.Errorf("seal the machine: %w", err)
	}
	return err
}

// ReadConsole starts to copy the console to w. Only the first call has an effect.
func (m *Machine) ReadConsole(w io.Writer) {
	m.readOnce.Do(func() { go m.copyConsole(w) })
}

// noConsole marks the console as read: nobody can start a reader any more.
func (m *Machine) noConsole() { m.readOnce.Do(func() { close(m.copied) }) }

// consoleDrain bounds how long the console is read after QEMU has ended.
const consoleDrain = time.Second

func (m *Machine) copyConsole(w io.Writer) {
	defer close(m.copied)
	buf := make([]byte, 4096)
	for {
		n, err := m.console.Read(buf)
		if n > 0 {
			_, _ = w.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// reaped is called once, when the process has ended.
func (m *Machine) reaped(state *os.ProcessState, process *jail.Process) {
	st := Exit{Code: -1, Guest: -1, Stderr: m.stderr.String(), Denied: process.Denied(),
		OutOfMemory: process.OutOfMemory()}
	if state != nil {
		st.Code = state.ExitCode()
		if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			st.Signal = ws.Signal().String()
		}
		// The debug-exit device makes QEMU exit with v<<1|1. QEMU's own failures are 1 with a message on stderr.
		if st.Code&1 == 1 && st.Code > 0 && complaint(st.Stderr) == "" {
			st.Guest = st.Code >> 1
		}
	}
	m.status = st
	close(m.exited)
}

// Exited is closed when the process has ended.
func (m *Machine) Exited() <-chan struct{} { return m.exited }

// Wait waits until the process has ended and its console is read. It returns the same result to every caller.
func (m *Machine) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-m.exited:
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	}
	m.noConsole()
	_ = m.console.SetReadDeadline(time.Now().Add(consoleDrain))
	<-m.copied
	return m.status, nil
}

// Status returns how the process ended, or an error while it runs.
func (m *Machine) Status() (Exit, error) {
	select {
	case <-m.exited:
		return m.status, nil
	default:
		return Exit{}, errors.New("the machine still runs")
	}
}

// Close kills the machine and frees all its resources. It may be called more than once and by several goroutines. Each
// call returns when everything is freed.
func (m *Machine) Close() error {
	m.closeOnce.Do(func() {
		m.kill()
		<-m.exited
		_ = m.Monitor.Disconnect()
		if m.state != nil {
			_ = m.state.Close()
		}
		m.noConsole()
		_ = m.console.SetReadDeadline(time.Now().Add(consoleDrain))
		<-m.copied
		_ = m.console.Close()
	})
	<-m.copied
	return nil
}

// Pid returns QEMU's process id.
func (m *Machine) Pid() int { return m.pid }

// socketPair returns a connected pair of stream sockets: a net.Conn, and a file for a child process to inherit.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	f, theirs, err := socketpair.New("machine")
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if ours, err = net.FileConn(f); err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return ours, theirs, nil
}

// diskRate bounds the bytes a second that a machine reads from disks, and those that it writes. A start reads the disk
// once, mostly from the host's memory. A broken QEMU must not occupy the disks.
const diskRate = 256 << 20

// maxStderr bounds how much of QEMU's own messages is kept: the last part.
const maxStderr = 16 << 10

// cleanups run once, in reverse order.
type cleanups []func()

func (c *cleanups) push(f func()) { *c = append(*c, f) }
func (c *cleanups) run() {
	for i := len(*c) - 1; i >= 0; i-- {
		(*c)[i]()
	}
	*c = nil
}

var errNotRegular = errors.New("not a regular file")
