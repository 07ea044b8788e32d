// Package machine makes machines whose guest waits for its code: booted, cloned from a template, or taken from the
// clones that are ready, here or in the pool daemon.
//
// A Source makes them from a Spec. A template is a snapshot: the memory of a stopped machine and the state of its
// devices. A clone is a machine that starts from a snapshot, with pages of its own where it writes. A ready clone was
// restored, rehearsed and paused. All of them are a Machine in one of three states (State).
//
// The package uses QEMU (vmm), images, the guest and its network. It knows nothing about policies, records and the code
// of a run.
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

// Class is what a run asks of its machine. Runs of one class are cloned from one
// template.
type Class struct {
	// Image is the name of its image: node, python; of a container's image the digest.
	Image    string       `json:"image"`
	Kernel   image.Kernel `json:"kernel"`
	Arch     image.Arch   `json:"arch"`
	MemoryMB int          `json:"memoryMb"`
	// CPUs is the processor time that it may use, in processors, and rounded up how many it has. 0 is 1.
	CPUs float64 `json:"cpus,omitempty"`
	// FreshProcess: each clone executes a new process of the language (linux).
	FreshProcess bool `json:"freshProcess,omitempty"`
	// Folders are those of the host that the machine holds, for Runtime.MakeTemplate to
	// read: "" is none. Only Warm gives it.
	Folders string `json:"folders,omitempty"`
}

// Spec is a class on this host, the one description that machines are made from.
type Spec struct {
	Image    *image.Image
	QEMU     vmm.QEMU
	Accel    vmm.Accel // "" as long as none is known to boot the image here
	MemoryMB int
	CPUs     float64 // Class's
	Fresh    bool    // Node is not started before the snapshot
	// Folders are what of the run's files clones of a template of their own have from the
	// beginning; nil is nothing. A machine whose spec has none must be sent them.
	Folders Folders
	Life    Life
	// NoTSC: under TCG it is a machine that counts time otherwise.
	NoTSC bool
}

// Life is for how long a machine is.
type Life int

const (
	OneRun  Life = iota // its end is its run's
	Lasting             // it can be paused, resumed and forked
)

// Folders are files that a template holds beside what every template does.
type Folders interface {
	// Key names the files, and their content.
	Key() string
	// Settle waits until they can be told from what they may become.
	Settle(ctx context.Context) error
	// Put sends them. It fails if they are no longer what Key says.
	Put(ctx context.Context, to *guest.Conn) error
	// Patience is how long Put may take.
	Patience() time.Duration
	// String is what another process needs to find them.
	String() string
}

// bare returns the spec without the folders.
func (s Spec) bare() Spec {
	s.Folders = nil
	return s
}

// templateVersion goes into every key: raise it when the command line or the way a
// template is made changes.
const templateVersion = 8

// Key names everything that a machine must have in common with the snapshot that it
// starts from. The image's digest holds the agent; a host's boot holds its TSC.
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

// foldersMark stands in the key of a template that holds folders.
const foldersMark = " folders "

// Class returns what the spec was made of.
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

// State is where a machine is on its way.
type State int

const (
	Spawned State = iota + 1 // QEMU runs and waits for a snapshot's device state
	Paused                   // the guest is there and stands still: it costs memory only
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

// Origin is how a run came by its machine.
type Origin int

const (
	Booted  Origin = iota // for this run
	Cloned                // from a template, for this run
	Pooled                // a clone that stood ready
	Resumed               // from where another one was paused, or forked
)

// Machine is a QEMU and the guest in it. One goroutine at a time may use it, but for
// Close, which may come from anywhere.
type Machine struct {
	Spec   Spec
	Origin Origin
	// Note goes into the description of its next pause (Pause.Note).
	Note json.RawMessage

	vm      *vmm.Machine
	swap    sync.Mutex // of vm, which a debugger may replace
	debug   *Debugger  // nil but for a machine that was started for one
	state   State
	devices []byte            // the snapshot's device state, of a spawned machine
	place   []int64           // the snapshot's
	placed  bool              // something was put there
	mapped  *os.File          // of a machine that lasts: what QEMU maps as its memory
	began   []byte            // and the device state that it began from; nil if it was booted, and all of its memory is in mapped
	link    *os.File          // our end of the network card's link while there is no network
	network *netstack.Network // once it is open
	console *console
	calls   *callLines  // between the serial port and the console, where calls are traced; else nil
	unfit   func(error) // of a clone: its template does not work
	fit     func()      // or does
	watched sync.Once

	keep    bool          // Config.Keep
	halting sync.Once     // Halt
	haltErr error         // of it
	halted  chan struct{} // closed when the processor was stopped because the guest crashed; nil without keep
	once    sync.Once
}

// Template returns the folder's name of the template that it was cloned from, "" if it was booted.
func (m *Machine) Template() string {
	if m.Origin == Booted || m.Origin == Resumed {
		return ""
	}
	return digestOf(m.Spec.Key())
}

// Rehearsed returns how many rehearsals its guest has behind it.
func (m *Machine) Rehearsed() int {
	switch {
	case m.Origin == Booted || m.Spec.Fresh:
		return 0
	case m.Origin == Cloned:
		return templateRehearsals
	}
	return templateRehearsals + cloneRehearsals
}

// State returns where the machine is on its way.
func (m *Machine) State() State { return m.state }

// qemu returns the process that runs the machine now.
func (m *Machine) qemu() *vmm.Machine {
	m.swap.Lock()
	defer m.swap.Unlock()
	return m.vm
}

// Monitor speaks QMP with the machine, also with one that the pool daemon holds.
func (m *Machine) Monitor() *vmm.Monitor { return m.qemu().Monitor }

// Jail says what holds QEMU.
func (m *Machine) Jail() vmm.Jail { return m.qemu().Jail }

// Drops counts, by kind, what the guest's network dropped.
func (m *Machine) Drops() map[netstack.Drop]uint64 { return m.network.Stats() }

// Work returns what the machine has done since QEMU was started: its processor time, and the frames that
// went over its network. ok says that it could be found out.
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

// Connections returns those that the guest has open to the outside now.
func (m *Machine) Connections() []netstack.Decision { return m.network.Connections() }

// Deadlines of the conversation with a guest.
const (
	// connectDeadline bounds the seed, the dial and the start of the code.
	connectDeadline = 30 * time.Second
	// cloneDeadline bounds a restore, and a clone's answer after it: beyond that
	// it is not worth waiting for.
	cloneDeadline = 5 * time.Second
	// templateDeadline bounds the rehearsals of a template and its writing, some five seconds. On
	// a busy host they were seen to take more than thirty, and a run meanwhile boots cold.
	templateDeadline = 2 * time.Minute
	// freshDeadline is what a clone has in which Node must be started first: a second
	// under TCG, several times that on a machine that is busy.
	freshDeadline = 15 * time.Second
)

// Connect seeds the guest, dials its agent and has load put the program in and start
// it, for which it may take patience longer than usual.
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

// lastWordsTime is how long a kernel that gives up may print the state of its processor.
const lastWordsTime = 300 * time.Millisecond

// watch ends the machine when its kernel gives up: left alone, that may go on for
// minutes without a word. One that is debugged stays.
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

// Cut ends what the guest may reach; the conversation with it continues.
func (m *Machine) Cut() { m.network.Cut() }

// SetRules changes what the guest may reach, as Network.SetRules does.
func (m *Machine) SetRules(rules []netstack.Rule) { m.network.SetRules(rules) }

// Unfit says that a clone's guest does not answer: its template is dropped.
func (m *Machine) Unfit(err error) {
	if m.unfit != nil {
		m.unfit(err)
	}
}

// afterlifeWait is how long a machine has to end after its guest is gone.
const afterlifeWait = 2 * time.Second

// exitUnknown and above are statuses that init and the kernels use for their own
// failures.
const exitUnknown = contract.ExitUnknown

// Afterlife finds out how the code ended when the agent could not tell: from the kernel's last words, or from the
// status that the machine ended with. The error is gone if neither says.
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
	if m.Spec.Image.Kernel == image.Linux && exit.Guest >= 0 && exit.Guest < exitUnknown { // init's; Nanos's own are signals and faults
		return guest.End{Code: exit.Guest}, nil
	}
	return guest.End{}, gone
}

// GuestError means that the machine ended without saying how the code did: the
// kernel stopped, or the guest broke the protocol.
type GuestError struct {
	Reason  string // one sentence
	Console string // the last lines of the serial console
	Err     error
}

func (e *GuestError) Error() string { return e.Reason }
func (e *GuestError) Unwrap() error { return e.Err }

// ended adds to an error how QEMU ended, if it has.
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

// explainWait is how long QEMU may take to end after its guest did something odd.
const explainWait = 100 * time.Millisecond

// Explain adds what the machine and its console have to say to an error of the
// conversation with it.
func (m *Machine) Explain(err error) error {
	if errors.As(err, new(*guest.ContentError)) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) { // the host's, whatever became of QEMU
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
	if _, death := m.console.words(); death != "" { // the rest of it is in the record
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
			if why, ok := strings.CutPrefix(line, "unitask: "); ok { // the agent's own
				reason = "the guest gave up: " + strings.TrimSpace(why)
			}
		}
	}
	return &GuestError{Reason: reason, Console: lastLines(tail, 20), Err: err}
}

// Lacking is closed when the code asks for something that the machine's kernel lacks.
func (m *Machine) Lacking() <-chan struct{} { return m.console.lacking }

// Lacks returns the first thing that the code asked for and the machine's kernel lacks, or
// "". The machine must have been closed.
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

// Resident returns the machine's share of the memory that it uses, in bytes; 0 if it can't
// be told.
func (m *Machine) Resident() int64 { return proportional(m.qemu().Pid()) }

// Close kills the machine and frees its network. It may be called again.
func (m *Machine) Close() error {
	m.once.Do(func() {
		if m.debug != nil {
			m.debug.close()
		}
		m.qemu().Close()
		m.mapped.Close() // nil will do
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
