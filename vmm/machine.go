package vmm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/socketpair"
	"github.com/unitask/unitask/internal/tail"
	"github.com/unitask/unitask/vmm/jail"
)

// Config is a machine to be started.
type Config struct {
	QEMU     QEMU
	Arch     Arch
	Accel    Accel // not Auto
	MemoryMB int   // of the guest
	// CPUs is the processor time that the machine may use, in processors; it has as many as are
	// needed for that. 0 is one processor, and QEMU's own work beside it.
	CPUs float64
	Boot Boot
	// NIC is QEMU's end of the network card's stream socket. Start duplicates
	// it; the caller closes its own copy.
	NIC *os.File
	// Console receives what the guest writes to its serial port, as it comes. A
	// Write that fails is ignored: the guest must not stall. nil leaves it all in
	// the socket until ReadConsole.
	Console io.Writer
	// Memory, if not nil, is a memfd of MemoryMB that becomes the machine's
	// memory: shared, to make a template; or, with State, the template's, of
	// which the machine gets private pages.
	Memory *os.File
	// MemoryFile: Memory is a template's own file, open for reading, for a QEMU that MapsFiles.
	MemoryFile bool
	// MemoryShared has a machine with a State change Memory too, which is its own.
	MemoryShared bool
	// State, if not nil, is a template's device state (SaveState); the machine
	// then starts stopped and without a kernel, and Restore lets it go on.
	State []byte
	// Lasting: the state of its devices can be had without its memory (SaveDevices).
	Lasting bool
	// Paused leaves the processor stopped until Resume.
	Paused bool
	// Keep has a guest that shuts down, resets or panics stop, not end, the machine; it
	// has no device to end QEMU with.
	Keep bool
	// GDB, if not nil, is a listening stream socket for gdb's remote protocol. Start
	// duplicates it. A client that connects stops the processor.
	GDB *os.File
	// LogItems are what of QEMU's own log goes to Log (-d's form); "" is nothing. Writes
	// must not block.
	LogItems string
	Log      io.Writer
	// NoJail leaves out all of the jail: to find out what it costs, or for a debugger.
	NoJail bool

	kvm string // in place of /dev/kvm, in tests; "" is that
}

// Jail says what holds a machine's process: each layer and each limit.
type (
	Jail  = jail.Report
	Layer = jail.Hold
	// Attempt is one thing that a stand-in for a broken QEMU tried, and what came of it.
	Attempt = jail.Attempt
)

// Remedy says what would make a layer hold on this host, "" where nothing would.
func Remedy(l Layer) string { return jail.Remedy(l) }

// TryJail says what holds a stand-in for this QEMU, which does nothing.
func TryJail(q QEMU, accel Accel) (Jail, error) { return jail.Try(q.Program, usesKVM(q, accel)) }

// Attack puts a stand-in for a broken QEMU into the jail that this QEMU would get, has
// it try all that must not be possible, and returns what came of it.
func Attack(q QEMU, accel Accel) ([]Attempt, Jail, error) {
	return jail.Attack(q.Program, usesKVM(q, accel), false)
}

// usesKVM says how a QEMU comes by KVM: one that can is given the open device, so that its jail
// has neither that nor the device's group.
func usesKVM(q QEMU, accel Accel) jail.KVM {
	switch {
	case accel != KVM:
		return jail.NoKVM
	case q.atLeast(9, 0): // the accelerator has a property device since then; Ubuntu 24.04's 8.2.2 refuses it
		return jail.KVMPassed
	}
	return jail.KVMOpened
}

// MapsFiles says that a QEMU, in its jail, can have its memory from a template's own file
// (Config.MemoryFile): QEMU 8.2 can map one that it opens for reading only, one before that gets
// a descriptor for reading when it opens it for writing too, of which it maps private pages
// as well; and Landlock and the filter see to it that one that was broken out of, whoever's it is, does no
// more than that.
func MapsFiles(q QEMU) bool { return (q.opensReadOnly() || jail.CanGive()) && jail.Confines(q.Program) }

// ErrNotHeld says that a QEMU may not have a file, since its jail does not hold.
var ErrNotHeld = errors.New("the jail does not hold as it should")

// Machine is a running QEMU. Close ends it; every other call may be made from
// any goroutine.
type Machine struct {
	Monitor *Monitor
	Jail    Jail // what holds the process

	pid     int
	kill    func()
	state   net.Conn // the device state, to QEMU: its descriptor stateFD; nil for one that was adopted
	stderr  tail.Buffer
	console net.Conn
	copied  chan struct{} // closed when the console's reader is done
	exited  chan struct{} // closed when the process is reaped
	status  Exit

	readOnce, closeOnce sync.Once
}

// Exit is how QEMU ended.
type Exit struct {
	Code   int    `json:"code"`   // exit status; -1 when Signal is set
	Signal string `json:"signal"` // "killed", …; "" for an ordinary exit
	// Denied is the system call for which its jail ended it: "connect". A QEMU that was
	// broken out of makes such a call, or one whose calls we do not know yet.
	Denied string `json:"denied,omitempty"`
	// OutOfMemory: the kernel ended it because it took more memory than a machine of its kind may.
	OutOfMemory bool   `json:"outOfMemory,omitempty"`
	Stderr      string `json:"stderr"` // QEMU's own messages, the last kilobytes
	// Guest is the status that the guest wrote to the debug-exit device, or -1.
	// It has 7 bits.
	Guest int `json:"guest"`
}

// Start starts QEMU and returns when the process runs; it does not wait for
// QMP, which comes up while the guest boots (Monitor.Connect waits).
func Start(ctx context.Context, cfg Config) (_ *Machine, err error) {
	var clean cleanups
	defer func() {
		if err != nil {
			clean.run()
		}
	}()
	qmpOurs, qmpTheirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	clean.push(func() { qmpOurs.Close() })
	defer qmpTheirs.Close()
	conOurs, conTheirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	clean.push(func() { conOurs.Close() })
	defer conTheirs.Close()

	stateOurs, stateTheirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	clean.push(func() { stateOurs.Close() })
	defer stateTheirs.Close()

	m := &Machine{console: conOurs, state: stateOurs, copied: make(chan struct{}), exited: make(chan struct{})}
	m.stderr.Size = maxStderr
	// Descriptors from 3 on, in this order.
	files := []*os.File{cfg.NIC, qmpTheirs, conTheirs, stateTheirs}
	own := len(files) // what comes behind was opened here
	at := inherited{nic: 3, qmp: 4, console: 5}
	if cfg.Memory != nil {
		files = append(files, cfg.Memory)
		own = len(files)
		at.memory = fmt.Sprintf("/proc/self/fd/%d", len(files)+2)
	}
	if cfg.GDB != nil {
		files = append(files, cfg.GDB)
		own = len(files)
		at.gdb = len(files) + 2
	}
	defer func() {
		for _, f := range files[own:] {
			f.Close()
		}
	}()
	kvm := usesKVM(cfg.QEMU, cfg.Accel)
	if kvm == jail.KVMPassed {
		device, err := os.OpenFile(cmp.Or(cfg.kvm, jail.KVMDevice), os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("start machine: %w", err)
		}
		files = append(files, device)
		at.kvm = len(files) + 2
	}
	if onQ35(cfg) && cfg.Boot.BIOS || cfg.State != nil && !onQ35(cfg) { // q35's state has the loader of its kernel, so a clone must have that
		cfg.Boot.Kernel, cfg.Boot.Initrd, cfg.Boot.Append = "", "", ""
	}
	cfg.Boot, files, err = openBoot(cfg.Boot, files)
	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	if jail.CanFilter() && !cfg.NoJail && len(cfg.QEMU.Program.Files) > 0 {
		cfg.QEMU.Sandbox = false // it refuses less than ours, and names nothing
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
		Program: cfg.QEMU.Program, Args: arguments(cfg, at), Files: files, Stderr: stderr, Open: cfg.NoJail,
		// Each malloc arena reserves 64 MiB of address space, which is bounded, and a host
		// with many cores would have a machine make many.
		Env:      []string{"PATH=/usr/bin:/bin", "MALLOC_ARENA_MAX=2"},
		FileSize: fileSize(cfg), KVM: kvm, Listens: cfg.GDB != nil, AddressSpace: uint64(cfg.MemoryMB)<<20 + addressSpaceExtra,
		Bounds: jail.Bounds{Memory: int64(cfg.MemoryMB) << 20, CPUs: cmp.Or(cfg.CPUs, float64(processors(cfg)+1))},
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
		process.Report.Layers = append(process.Report.Layers, jail.Hold{Name: jail.QEMUSeccomp, Holds: true, Detail: "four groups of system calls"})
	}
	m.Jail, m.pid, m.kill = process.Report, process.Pid, process.Kill
	m.Monitor = NewMonitor(qmpOurs)
	if cfg.Console != nil {
		m.ReadConsole(cfg.Console)
	}
	return m, nil
}

// holds says why a process can't have a template's own file, or what it is to be given for it.
func holds(p *jail.Process, file, given bool) error {
	unheld := p.Report.Lacks([]string{jail.Landlock, jail.Seccomp})
	switch {
	case file && len(unheld) > 0:
		return fmt.Errorf("%w: %s", ErrNotHeld, unheld[0].Why)
	case given && !p.Gives():
		return fmt.Errorf("%w: its filter has no listener", ErrNotHeld)
	}
	return nil
}

// CanShareProcessor says why no machine can be held to a fraction of a processor's time here, with
// the remedy; nil where one can.
func CanShareProcessor() error {
	if err := jail.CanShare(); err != nil {
		return fmt.Errorf("a fraction of a processor wants a control group with the cpu controller: %w", err)
	}
	return nil
}

// fileSize is what QEMU may write into a file: a state, into one that it is given for it.
func fileSize(cfg Config) uint64 {
	if cfg.Lasting {
		return maxState
	}
	return 0
}

// logLines takes QEMU's own messages out of its log: both are on stderr, since a jail lets
// it make no file. Its messages begin with its name.
type logLines struct {
	program  string
	own, log io.Writer
	line     []byte
}

// maxLogLine bounds a line that is looked at whole.
const maxLogLine = 4 << 10

func (l *logLines) Write(p []byte) (int, error) {
	l.line = append(l.line, p...)
	for {
		i := bytes.IndexByte(l.line, '\n') + 1
		if i == 0 && len(l.line) < maxLogLine {
			return len(p), nil
		}
		if i == 0 {
			i = len(l.line)
		}
		to := l.log
		if bytes.HasPrefix(l.line, []byte(l.program)) {
			to = l.own
		}
		_, _ = to.Write(l.line[:i])
		l.line = append(l.line[:0], l.line[i:]...)
	}
}

// addressSpaceExtra is what QEMU maps beside the guest's memory: itself, its
// libraries, thread stacks and a translation buffer.
const addressSpaceExtra = 4 << 30

// Lent are the descriptors by which another process speaks with a machine and its
// guest's console. Close frees them.
type Lent struct {
	Console, Monitor *os.File
}

// Close frees the descriptors.
func (l Lent) Close() { _ = errors.Join(l.Console.Close(), l.Monitor.Close()) }

// Lend gives away the console and the monitor, which must be connected; neither
// ReadConsole nor the Monitor may be used here before or after.
func (m *Machine) Lend() (Lent, error) {
	console, err := m.console.(*net.UnixConn).File()
	if err != nil {
		return Lent{}, fmt.Errorf("lend machine: %w", err)
	}
	monitor, err := m.Monitor.Detach()
	if err != nil {
		console.Close()
		return Lent{}, fmt.Errorf("lend machine: %w", err)
	}
	return Lent{console, monitor}, nil
}

// Adoption is a machine that another process started and holds.
type Adoption struct {
	Jail   Jail
	Pid    int
	Lent          // Adopt duplicates them
	Kill   func() // asks for its end
	Exited <-chan Exit
}

// Adopt returns a machine that was started elsewhere and lent, and runs.
func Adopt(a Adoption) (*Machine, error) {
	console, err := net.FileConn(a.Console)
	if err != nil {
		return nil, fmt.Errorf("adopt machine: %w", err)
	}
	qmp, err := net.FileConn(a.Monitor)
	if err != nil {
		console.Close()
		return nil, fmt.Errorf("adopt machine: %w", err)
	}
	m := &Machine{Monitor: AdoptMonitor(qmp), Jail: a.Jail, pid: a.Pid, kill: a.Kill, console: console, copied: make(chan struct{}), exited: make(chan struct{})}
	go func() { // until Exited says; Close waits for it
		m.status = <-a.Exited
		close(m.exited)
	}()
	return m, nil
}

// ReadConsole copies the console to w from now on. Only the first call counts.
func (m *Machine) ReadConsole(w io.Writer) {
	m.readOnce.Do(func() { go m.copyConsole(w) })
}

// noConsole: from here on there is nobody to read it.
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
	st := Exit{Code: -1, Guest: -1, Stderr: m.stderr.String(), Denied: process.Denied(), OutOfMemory: process.OutOfMemory()}
	if state != nil {
		st.Code = state.ExitCode()
		if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			st.Signal = ws.Signal().String()
		}
		// The debug-exit device ends QEMU with v<<1|1; QEMU's own failures are 1
		// and have something on stderr.
		if st.Code&1 == 1 && st.Code > 0 && complaint(st.Stderr) == "" {
			st.Guest = st.Code >> 1
		}
	}
	m.status = st
	close(m.exited)
}

// complaint is what QEMU said without its warnings, which end no machine.
func complaint(stderr string) string {
	var out strings.Builder
	for line := range strings.Lines(stderr) {
		if !strings.Contains(line, ": warning: ") {
			out.WriteString(line)
		}
	}
	return strings.TrimSpace(out.String())
}

// Exited is closed when the process has ended.
func (m *Machine) Exited() <-chan struct{} { return m.exited }

// Wait waits for the end of the process and of its console, and returns the
// same answer to every caller.
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

// Status is how the process ended; an error while it runs.
func (m *Machine) Status() (Exit, error) {
	select {
	case <-m.exited:
		return m.status, nil
	default:
		return Exit{}, errors.New("the machine still runs")
	}
}

// Err turns the end of a process that should still run into an error.
func (e Exit) Err() error {
	status := fmt.Sprintf("exit status %d", e.Code)
	switch {
	case e.OutOfMemory:
		status = "it took more memory than its control group may have"
	case e.Denied != "":
		status = "its jail ended it for the system call " + e.Denied
	case e.Signal != "":
		status = "signal: " + e.Signal
	}
	return &ExitError{Status: status, Stderr: e.Stderr}
}

// Close kills the machine and frees everything it holds. It may be called more
// than once and by several goroutines; each returns when all is gone.
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

// Pid is QEMU's process id.
func (m *Machine) Pid() int { return m.pid }

// socketPair returns a connected pair of stream sockets: ours as a net.Conn,
// theirs as a file to be inherited.
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

// maxStderr is how much of QEMU's own messages is kept: its last words.
const maxStderr = 16 << 10

// cleanups run once, in reverse.
type cleanups []func()

func (c *cleanups) push(f func()) { *c = append(*c, f) }
func (c *cleanups) run() {
	for i := len(*c) - 1; i >= 0; i-- {
		(*c)[i]()
	}
	*c = nil
}

var errNotRegular = errors.New("not a regular file")
