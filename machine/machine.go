// Package machine makes machines whose guest waits for its code. They are booted, cloned from a template, or taken from
// the ready clones, here or in the pool daemon.
//
// A Source makes them from a Spec. A template is a snapshot: the memory of a stopped machine and the state of its
// devices. A clone is a machine that starts from a snapshot; pages that it writes are private. A ready clone was
// restored, rehearsed and paused. All of them are a Machine in one of three states (State).
//
// The package uses QEMU (vmm), images, the guest and its network. It knows nothing about policies, records and the
// code of a run.
package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/vmm"
)

// Class is a run's requirements for its machine. Runs of one class are cloned from one template.
type Class struct {
	// Image is the image's name: node, python; for a container's image the digest.
	Image    string       `json:"image"`
	Kernel   image.Kernel `json:"kernel"`
	Arch     image.Arch   `json:"arch"`
	MemoryMB int          `json:"memoryMb"`
	// CPUs limits processor time, in processors; rounded up, it is the number of virtual processors. 0 means 1.
	CPUs float64 `json:"cpus,omitempty"`
	// FreshProcess starts a new process of the language in each clone (linux).
	FreshProcess bool `json:"freshProcess,omitempty"`
	// Folders encodes host folders in the machine, for Runtime.MakeTemplate to read; "" means none. Only Warm
	// sets it.
	Folders string `json:"folders,omitempty"`
}

// Spec describes a class on this host: everything that making a machine needs.
type Spec struct {
	Image    *image.Image
	QEMU     vmm.QEMU
	Accel    vmm.Accel // "" as long as none is known to boot the image here
	MemoryMB int
	CPUs     float64 // as in Class
	Fresh    bool    // Node starts after the snapshot, not before it
	// Folders are the run's files that a special template already contains; nil means none. A machine whose spec
	// has none must be sent the files.
	Folders Folders
	Life    Life
	// NoTSC marks a machine that, under TCG, does not use the TSC as its clock.
	NoTSC bool
}

// Life says whether a machine serves one run or lasts.
type Life int

const (
	OneRun  Life = iota // ends with its run
	Lasting             // can be paused, resumed and forked
)

// Folders are files that a template contains beside the usual ones.
type Folders interface {
	// Key identifies the files and their content.
	Key() string
	// Settle waits until a later change to the files is certain to be noticed.
	Settle(ctx context.Context) error
	// Put sends the files. It fails if they no longer match Key.
	Put(ctx context.Context, to *guest.Conn) error
	// Patience bounds the duration of Put.
	Patience() time.Duration
	// String returns what another process needs to find the files.
	String() string
}

// bare returns the spec without the folders.
func (s Spec) bare() Spec {
	s.Folders = nil
	return s
}

// templateVersion is part of every key: raise it when the command line or the making of templates changes.
const templateVersion = 8

// Key identifies everything that a machine must have in common with the snapshot it starts from. The image's
// digest covers the agent; the boot id covers the TSC.
func (s Spec) Key() string {
	how := "warm"
	if s.Fresh {
		how = "fresh"
	}
	key := fmt.Sprintf("%d %s %s %s %d %s %s %s", templateVersion, s.Image.Digest, s.Accel, s.QEMU.Version, s.MemoryMB,
		how, s.QEMU.ID, bootID())
	if s.CPUs > 0 && s.CPUs != 1 {
		key += fmt.Sprintf(" cpus %g", s.CPUs)
	}
	if s.NoTSC && s.Accel == vmm.TCG {
		key += " no tsc"
	}
	if s.Folders != nil {
		key += foldersMark + s.Folders.Key()
	}
	return key
}

// foldersMark marks the key of a template that contains folders.
const foldersMark = " folders "

// Class returns the class of the spec.
func (s Spec) Class() Class {
	sh := Class{Image: s.Image.Name, Kernel: s.Image.Kernel, Arch: s.Image.Arch, MemoryMB: s.MemoryMB, CPUs: s.CPUs,
		FreshProcess: s.Fresh}
	if s.Image.Container != "" {
		sh.Image = s.Image.Container
	}
	if s.Folders != nil {
		sh.Folders = s.Folders.String()
	}
	return sh
}

// State is a machine's stage before and during its run.
type State int

const (
	Spawned State = iota + 1 // QEMU runs and waits for a snapshot's device state
	Paused                   // the guest is up but stopped: it costs memory only
	Running                  // the guest runs
)

func (s State) String() string {
	switch s {
	case Spawned:
		return "spawned"
	case Paused:
		return "paused"
	case Running:
		return "running"
	}
	return "no state"
}

// Origin says where a run's machine came from.
type Origin int

const (
	Booted  Origin = iota // for this run
	Cloned                // from a template, for this run
	Pooled                // a clone that was ready
	Resumed               // from a paused or forked machine
)

// Machine is a QEMU with its guest. One goroutine at a time may use it; only Close may be called from anywhere.
type Machine struct {
	Spec   Spec
	Origin Origin
	// Note is stored in the description of the next pause (Pause.Note).
	Note json.RawMessage

	vm      *vmm.Machine
	swap    sync.Mutex // protects vm, which a debugger may replace
	debug   *Debugger  // nil unless the machine was started for a debugger
	state   State
	devices []byte            // the snapshot's device state, of a spawned machine
	mapped  *os.File          // of a machine that lasts: the file that QEMU maps as memory
	began   []byte            // its initial device state; nil if it was booted and all of its memory is in mapped
	link    *os.File          // our end of the network card's link while there is no network
	network *netstack.Network // once it is open
	console *console
	calls   *callLines  // between the serial port and the console, if calls are traced; else nil
	unfit   func(error) // reports that a clone's template does not work
	fit     func()      // reports that it works
	watched sync.Once

	keep    bool          // Config.Keep
	halting sync.Once     // runs Halt once
	haltErr error         // the error of Halt
	halted  chan struct{} // closed when the processor was stopped because the guest crashed; nil without keep
	once    sync.Once
}

// Template returns the folder name of the template that the machine was cloned from, "" if it was not cloned.
func (m *Machine) Template() string {
	if m.Origin == Booted || m.Origin == Resumed {
		return ""
	}
	return digestOf(m.Spec.Key())
}

// Rehearsed returns how many rehearsals the guest has run.
func (m *Machine) Rehearsed() int {
	switch {
	case m.Origin == Booted || m.Spec.Fresh:
		return 0
	case m.Origin == Cloned:
		return templateRehearsals
	}
	return templateRehearsals + cloneRehearsals
}

// State returns the machine's state.
func (m *Machine) State() State { return m.state }

// qemu returns the process that runs the machine now.
func (m *Machine) qemu() *vmm.Machine {
	m.swap.Lock()
	defer m.swap.Unlock()
	return m.vm
}

// Monitor returns the machine's QMP connection, also for a machine of the pool daemon.
func (m *Machine) Monitor() *vmm.Monitor { return m.qemu().Monitor }

// Jail describes QEMU's jail.
func (m *Machine) Jail() vmm.Jail { return m.qemu().Jail }

// Drops returns the number of packets that the guest's network dropped, by kind.
func (m *Machine) Drops() map[netstack.Drop]uint64 { return m.network.Stats() }

// Work returns the machine's processor time and its network frames since QEMU started. ok is false if they are
// unknown.
func (m *Machine) Work() (processor time.Duration, frames uint64, ok bool) {
	proc, err := procfs.NewProc(m.vm.Pid())
	if err != nil {
		return 0, 0, false
	}
	stat, err := proc.Stat()
	if err != nil || m.network == nil {
		return 0, 0, false
	}
	return time.Duration(stat.CPUTime() * float64(time.Second)), m.network.Frames(), true
}

// Connections returns the guest's open connections to the outside.
func (m *Machine) Connections() []netstack.Decision { return m.network.Connections() }

// Deadlines of the conversation with a guest.
const (
	// connectDeadline bounds the seed, the dial and the start of the code.
	connectDeadline = 30 * time.Second
	// cloneDeadline bounds a restore, and then a clone's answer: a longer wait is not worth it. On two processors
	// with ten busy processes, some clones took more than five seconds.
	cloneDeadline = 10 * time.Second
	// readyDeadline bounds the preparation of a ready clone, for which no run waits. A clone that exceeds it counts
	// as a failure of its template, which a busy host must not cause.
	readyDeadline = 30 * time.Second
	// templateDeadline bounds the rehearsals of a template and its writing, which take some five seconds. On a
	// busy host they took more than thirty; meanwhile runs boot cold.
	templateDeadline = 2 * time.Minute
	// freshDeadline applies to a clone that must start Node first: a second under TCG, several times that on a
	// busy machine.
	freshDeadline = 15 * time.Second
)

// Connect seeds the guest, dials its agent and calls load to send and start the program. patience is added to the
// usual deadline.
func (m *Machine) Connect(ctx context.Context, patience time.Duration,
	load func(context.Context, *guest.Conn) error) (*guest.Conn, error) {
	deadline := connectDeadline
	switch {
	case m.Origin == Booted:
	case m.Spec.Fresh:
		deadline = freshDeadline
	default:
		deadline = cloneDeadline
	}
	if m.debug != nil {
		deadline = debugPatience
	}
	timed, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	m.watch()
	conn, err := guest.Connect(timed, m.network)
	if err != nil {
		return nil, err
	}
	loading, cancelLoading := context.WithTimeout(ctx, deadline+patience)
	defer cancelLoading()
	stop := context.AfterFunc(loading, func() { conn.Close() })
	defer stop()
	if err := load(loading, conn); err != nil {
		conn.Close()
		if loading.Err() != nil {
			err = context.Cause(loading)
		}
		return nil, err
	}
	if m.fit != nil {
		m.fit()
	}
	return conn, nil
}

// lastWordsTime is the time a dying kernel gets to print the state of its processor.
const lastWordsTime = 300 * time.Millisecond

// watch closes the machine when its kernel panics: by itself it might end only after minutes without output. A debugged
// machine stays.
func (m *Machine) watch() {
	if m.debug != nil {
		return
	}
	if m.keep {
		m.watchKept()
		return
	}
	m.watched.Do(func() {
		go func() {
			select {
			case <-m.console.dead:
			case <-m.vm.Exited():
				return
			}
			select {
			case <-time.After(lastWordsTime):
				m.vm.Close()
			case <-m.vm.Exited():
			}
		}()
	})
}

// Cut ends the guest's network access; the conversation with the guest continues.
func (m *Machine) Cut() { m.network.Cut() }

// SetRules changes the guest's network rules, as Network.SetRules does.
func (m *Machine) SetRules(rules []netstack.Rule) { m.network.SetRules(rules) }

// Unfit reports that a clone's guest does not respond: its template is dropped.
func (m *Machine) Unfit(err error) {
	if m.unfit != nil {
		m.unfit(err)
	}
}

// afterlifeWait bounds the wait for a machine to end after its guest is gone.
const afterlifeWait = 2 * time.Second

// exitUnknown and above are statuses that init and the kernels use for their own failures.
const exitUnknown = contract.ExitUnknown

// Afterlife finds out how the code ended when the agent could not report it: from the kernel's last messages, or
// from the machine's exit status. If neither tells, it returns the error gone.
func (m *Machine) Afterlife(ctx context.Context, gone error) (guest.End, error) {
	timed, cancel := context.WithTimeout(ctx, afterlifeWait)
	defer cancel()
	vm, exit := m.qemu(), vmm.Exit{Guest: -1}
	select {
	case <-vm.Exited():
		exit, _ = vm.Wait(context.Background()) // until the console is read
	case <-m.halted:
	case <-timed.Done():
		return guest.End{}, gone
	}
	words, _ := m.console.words()
	if end, ok := guest.LastWords(words); ok {
		return end, nil
	}
	if m.Spec.Image.Kernel == image.Linux && exit.Guest >= 0 &&
		exit.Guest < exitUnknown { // init's; Nanos's own are signals and faults
		return guest.End{Code: exit.Guest}, nil
	}
	return guest.End{}, gone
}

// GuestError means that the machine ended without reporting how the code ended: the kernel stopped, or the guest
// violated the protocol.
type GuestError struct {
	Reason  string // one sentence
	Console string // the last lines of the serial console
	Err     error
}

func (e *GuestError) Error() string { return e.Reason }
func (e *GuestError) Unwrap() error { return e.Err }

// ended adds QEMU's exit status to an error, if QEMU has exited.
func (m *Machine) ended(err error) error {
	vm := m.qemu()
	select {
	case <-vm.Exited():
	case <-time.After(explainWait):
		return err
	}
	exit, _ := vm.Status()
	return fmt.Errorf("%w (%w)", exit.Err(), err)
}

// explainWait bounds the wait for QEMU to exit after its guest misbehaved.
const explainWait = 100 * time.Millisecond

// Explain adds details from the machine and its console to an error of the conversation with it.
func (m *Machine) Explain(err error) error {
	if errors.As(err, new(*guest.ContentError)) || errors.Is(err, syscall.ENOSPC) ||
		errors.Is(err, syscall.EDQUOT) { // the host's, whatever QEMU did
		return err
	}
	var proto *guest.ProtocolError
	if errors.As(err, &proto) {
		return &GuestError{Reason: err.Error(), Err: err}
	}
	vm := m.qemu()
	var exit vmm.Exit
	select {
	case <-vm.Exited():
		m.network.Close()
		var waitErr error
		if exit, waitErr = vm.Wait(context.Background()); waitErr != nil {
			return err
		}
	case <-m.halted:
		m.network.Close()
	case <-time.After(explainWait):
		return err
	}
	if _, death := m.console.words(); death != "" { // the rest is in the record
		return &GuestError{Reason: fmt.Sprintf("the %s kernel stopped: %s", m.Spec.Image.Kernel,
			guest.DeathCause(shown(death))), Err: err}
	}
	tail := m.console.text()
	if exit.Stderr != "" || exit.Signal != "" {
		return fmt.Errorf("%w (%w)", exit.Err(), err)
	}
	reason := "the machine stopped before the code had ended"
	if tail != "" {
		reason += "; its console ends: " + lastLines(tail, 1)
		for line := range strings.Lines(tail) {
			if why, ok := strings.CutPrefix(line, "unitask: "); ok { // printed by the agent
				reason = "the guest gave up: " + strings.TrimSpace(why)
			}
		}
	}
	return &GuestError{Reason: reason, Console: lastLines(tail, 20), Err: err}
}

// Lacking returns a channel that is closed when the code asks for something that the machine's kernel lacks.
func (m *Machine) Lacking() <-chan struct{} { return m.console.lacking }

// Lacks returns the first thing that the code asked for and the machine's kernel lacks, or "". The machine must
// be closed.
func (m *Machine) Lacks() string {
	if m.console == nil {
		return ""
	}
	return m.console.lacks
}

// Alive reports whether QEMU still runs.
func (m *Machine) Alive() bool {
	select {
	case <-m.qemu().Exited():
		return false
	default:
		return true
	}
}

// Resident returns the machine's share of the memory that it uses, in bytes, or 0 if it is unknown.
func (m *Machine) Resident() int64 { return proportional(m.qemu().Pid()) }

// Close kills the machine and frees its network. It may be called again.
func (m *Machine) Close() error {
	m.once.Do(func() {
		if m.debug != nil {
			m.debug.close()
		}
		m.qemu().Close()
		m.mapped.Close() // nil is allowed
		if m.calls != nil {
			m.calls.flush()
		}
		if m.network != nil {
			m.network.Close()
		} else {
			m.link.Close()
		}
	})
	return nil
}
