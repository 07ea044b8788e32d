package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

// A paused machine is a snapshot in a folder of its own: memory, device state and a description,
// which names what must be the same where it is resumed and the digests of both. It takes the place of
// the one before in one step.

// ErrPause means that a paused machine is not whole, or is not one.
var ErrPause = errors.New("the paused machine is damaged")

// ErrLasting means that a machine was not made to be paused.
var ErrLasting = errors.New("this machine lasts for one run only")

// OtherHostError means that a machine was paused where something was otherwise than here. It is
// whole, and can be resumed where that is as it was.
type OtherHostError struct{ What, Paused, Here string }

func (e *OtherHostError) Error() string {
	return fmt.Sprintf(
		"the machine was paused with %s %s, and here it is %s: it can be resumed only where that is as it was", e.What,
		e.Paused, e.Here)
}

const (
	pauseName    = PauseFile
	pauseVersion = 1
	maxPauseText = MaxPauseText
)

// PauseFile is the file of a paused machine's folder with its description, of MaxPauseText bytes at most.
const (
	PauseFile    = "pause.json"
	MaxPauseText = 8 << 20
)

// Pause describes a paused machine.
type Pause struct {
	Version int       `json:"version"`
	At      time.Time `json:"at"`
	Class   Class     `json:"shape"`
	// What must be the same where it is resumed, beside the class.
	ImageDigest string `json:"imageDigest"`
	QEMU        string `json:"qemu"`
	QEMUID      string `json:"qemuId"`
	Accel       string `json:"accel"`
	Processor   string `json:"processor,omitempty"` // the host's, where the guest has that
	TSCKHz      int    `json:"tscKHz,omitempty"`    // by which the guest counts time

	keptFiles
	MemorySHA256 string `json:"memorySha256"` // digestMemory's

	// Note is what the owner of the machine needs to continue with it (Machine.Note).
	Note json.RawMessage `json:"note,omitempty"`
}

// paused describes a machine of a spec on this host, without its files.
func (s *Source) paused(spec Spec) Pause {
	p := Pause{Version: pauseVersion, Class: spec.bare().Class(), ImageDigest: spec.Image.Digest, QEMU: spec.QEMU.Version,
		QEMUID: spec.QEMU.ID, Accel: string(spec.Accel)}
	if spec.Accel != vmm.TCG {
		p.Processor = processor()
	}
	if spec.Image.Arch == image.AMD64 {
		p.TSCKHz = s.tscKHz()
	}
	return p
}

// differs says what a machine that was paused can't do without and this host has otherwise.
func (p Pause) differs(here Pause) error {
	for _, f := range []struct{ what, paused, here string }{
		{"the image", p.Class.Image + " " + p.ImageDigest, here.Class.Image + " " + here.ImageDigest},
		{"the kernel", string(p.Class.Kernel), string(here.Class.Kernel)},
		{"the architecture", string(p.Class.Arch), string(here.Class.Arch)},
		{"memory of", strconv.Itoa(p.Class.MemoryMB) + " MiB", strconv.Itoa(here.Class.MemoryMB) + " MiB"},
		{"QEMU", p.QEMU + " (" + p.QEMUID + ")", here.QEMU + " (" + here.QEMUID + ")"},
		{"the accelerator", p.Accel, here.Accel},
		{"the processor", p.Processor, here.Processor},
	} {
		if f.paused != f.here {
			return &OtherHostError{f.what, f.paused, f.here}
		}
	}
	const tolerance = 100 // of it; it is measured, a little otherwise at each boot
	if d := p.TSCKHz - here.TSCKHz; max(d, -d) > here.TSCKHz/tolerance {
		return &OtherHostError{"a processor's counter of", strconv.Itoa(p.TSCKHz) + " kHz",
			strconv.Itoa(here.TSCKHz) + " kHz"}
	}
	return nil
}

// ReadPause reads the description of the machine that was paused into a folder. The error is fs.ErrNotExist if there is
// none.
func ReadPause(folder string) (Pause, error) {
	dir, err := openPause(folder)
	if err != nil {
		return Pause{}, err
	}
	defer dir.Close()
	return readPause(dir)
}

// openPause opens the folder of a paused machine, which must be ours alone.
func openPause(folder string) (*os.Root, error) {
	if err := restore(folder); err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	st, err := dir.Stat(".")
	if err == nil && (st.Mode().Perm()&0o077 != 0 || int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid()) {
		err = fmt.Errorf("%w: %s is not this user's alone", ErrPause, folder)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func readPause(dir *os.Root) (p Pause, err error) {
	text, err := readWhole(dir, pauseName, maxPauseText)
	if errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil && p.Version != pauseVersion {
		err = fmt.Errorf("it is of version %d, this is %d", p.Version, pauseVersion)
	}
	if err != nil {
		return p, damaged(filepath.Join(dir.Name(), pauseName), err)
	}
	return p, nil
}

// damaged is an error of reading a paused machine: ErrPause, unless it is the host's, which says nothing of what is
// there.
func damaged(path string, err error) error {
	var host syscall.Errno
	if errors.As(err, &host) && !slices.Contains([]syscall.Errno{syscall.ENOENT, syscall.ENOTDIR, syscall.EISDIR,
		syscall.ELOOP, syscall.ENXIO}, host) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return fmt.Errorf("%w: %s: %v", ErrPause, path, err)
}

// pauseStep is called at each step of a pause, by its name; for tests.
var pauseStep = func(string) {}

// continueDeadline bounds how long a machine has to go on that could not be paused.
const continueDeadline = 10 * time.Second

// Pause stops a machine that lasts, keeps it in a folder in the place of what was kept there before, and ends it: it is
// closed. A crash, at any time, leaves the one or the other. After an error the machine continues, unless it could not,
// and the folder is as it was. Whatever is under way between host and guest is lost: there should be nothing. One
// process at a time may use a folder.
func (s *Source) Pause(ctx context.Context, m *Machine, folder string) error {
	if m.mapped == nil {
		return fmt.Errorf("pause: %w", ErrLasting)
	}
	if err := s.pause(ctx, m, folder); err != nil {
		err = fmt.Errorf("pause into %s: %w", folder, err)
		if errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w: the machine goes on; make room there and pause it again", err)
		}
		timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), continueDeadline)
		defer cancel()
		if m.Alive() {
			err = errors.Join(err, m.vm.Resume(timed))
		}
		return err
	}
	return m.Close()
}

func (s *Source) pause(ctx context.Context, m *Machine, folder string) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	RemoveLeftovers(folder)
	tmp, err := os.MkdirTemp(filepath.Dir(folder), leftover(folder))
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	pauseStep("folder")
	p := s.paused(m.Spec)
	p.Note = m.Note
	p.keptFiles, err = keep(tmp, int64(m.Spec.MemoryMB)<<20, func(memory *os.File) ([]byte, error) {
		return capture(ctx, m.vm, m.mapped, m.began, memory)
	}, func(memory *os.File) error {
		pauseStep("memory")
		synced := make(chan error, 1)
		go func() { synced <- memory.Sync() }()
		var sumErr error
		p.MemorySHA256, sumErr = digestMemory(memory)
		return errors.Join(sumErr, <-synced)
	})
	if err != nil {
		return err
	}
	pauseStep("state")
	p.At = time.Now().UTC()
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if len(text) > maxPauseText {
		return fmt.Errorf("its description has %d bytes: %d is the most", len(text), maxPauseText)
	}
	if err := os.WriteFile(filepath.Join(tmp, pauseName), text, 0o600); err != nil {
		return err
	}
	for _, name := range []string{stateName, pauseName, "."} {
		if err := syncPath(filepath.Join(tmp, name)); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	pauseStep("written")
	return settle(folder, tmp)
}

// syncFolder is syncPath, a variable for tests.
var syncFolder = syncPath

// settle puts what was paused into a folder in the place of another one, for good. After an error that is where it was.
func settle(folder, tmp string) error {
	if err := replace(folder, tmp); err != nil {
		return err
	}
	pauseStep("replaced")
	err := syncFolder(filepath.Dir(folder))
	if err == nil {
		return nil
	}
	back := os.Rename(folder, tmp) // where there was none before
	if back != nil {
		back = replace(folder, tmp)
	}
	if back != nil {
		err = fmt.Errorf("%w; what was paused now stays in the folder: %w", err, back)
	}
	return err
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// leftover returns the beginning of what a pause into a folder makes beside it.
func leftover(folder string) string { return "." + filepath.Base(folder) + ".pausing-" }

// RemoveLeftovers removes what a pause into a folder left beside it when it was killed. What it had moved aside is put
// back; where it can't be it stays where it is, being all that there is of it.
func RemoveLeftovers(folder string) {
	_ = restore(folder)
	if _, err := os.Lstat(folder); err == nil {
		_ = os.RemoveAll(aside(folder))
	}
	entries, _ := os.ReadDir(filepath.Dir(folder))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), leftover(folder)) {
			_ = os.RemoveAll(filepath.Join(filepath.Dir(folder), e.Name()))
		}
	}
}

// RemovePause removes the machine that was paused into a folder, and all that was left beside it: nothing can put it
// back.
func RemovePause(folder string) error {
	RemoveLeftovers(folder)
	return errors.Join(os.RemoveAll(aside(folder)), os.RemoveAll(folder))
}

// Resume starts the machine that was paused into a folder, where it continues from there: its guest has to be given
// entropy and the time, and the way to it (Machine.Rejoin). The folder stays as it is. The spec is that of machines of
// its class here (ReadPause). The error is an *OtherHostError if something is otherwise than when it was paused,
// ErrPause where the folder is not whole, and fs.ErrNotExist where there is none.
func (s *Source) Resume(ctx context.Context, folder string, spec Spec, cfg Config) (*Machine, error) {
	m, err := s.resume(ctx, folder, spec, cfg)
	if err != nil {
		return nil, fmt.Errorf("resume %s: %w", folder, err)
	}
	return m, nil
}

func (s *Source) resume(ctx context.Context, folder string, spec Spec, cfg Config) (*Machine, error) {
	dir, err := openPause(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	p, err := readPause(dir)
	if err != nil {
		return nil, err
	}
	spec = spec.bare()
	if spec.Life = Lasting; spec.Accel == "" {
		spec.Accel = vmm.Accel(p.Accel)
	}
	if err := p.differs(s.paused(spec)); err != nil {
		return nil, err
	}
	open := func(mapped bool) (*Machine, error) {
		memory, devices, stamped, err := p.open(dir)
		if err == nil && !stamped { // it was copied, or changed
			var sum string
			if sum, err = digestMemory(memory); err == nil && sum != p.MemorySHA256 {
				err = errors.New("the digest of its memory is wrong")
			}
			if err != nil {
				memory.Close()
			}
		}
		if err != nil {
			return nil, damaged(folder, err)
		}
		snapshot, err := load(memory, devices, p.At, mapped)
		if err != nil {
			return nil, err
		}
		defer snapshot.Close()
		return s.start(ctx, spec, snapshot)
	}
	var m *Machine
	if err = vmm.ErrNotHeld; vmm.MapsFiles(spec.QEMU) {
		m, err = open(true)
	}
	if errors.Is(err, vmm.ErrNotHeld) {
		m, err = open(false)
	}
	if err != nil {
		return nil, err
	}
	m.Origin = Resumed
	if err := s.open(ctx, m, cfg); err != nil {
		return nil, err
	}
	return m, nil
}

// Snapshot takes a snapshot of a machine that lasts, which stands still meanwhile, and continues.
func (s *Source) Snapshot(ctx context.Context, m *Machine) (*Snapshot, error) {
	if m.mapped == nil {
		return nil, fmt.Errorf("fork: %w", ErrLasting)
	}
	var devices []byte
	memory, err := newCopy(m.mapped, func(to *os.File) (err error) {
		devices, err = capture(ctx, m.vm, m.mapped, m.began, to)
		return err
	})
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), continueDeadline)
	defer cancel()
	if resumed := m.vm.Resume(timed); err == nil {
		err = resumed
	}
	if err == nil {
		err = SealMemory(memory)
	}
	if err != nil {
		memory.Close() // nil will do
		return nil, fmt.Errorf("fork: %w", err)
	}
	return filled(memory, devices, time.Now()), nil
}

// Fork starts a machine of a spec that continues from the snapshot of another one of it, as Resume does, with pages of
// its own where it writes. It may be called for several at once.
func (s *Source) Fork(ctx context.Context, spec Spec, snapshot *Snapshot, cfg Config) (*Machine, error) {
	m, err := s.fork(ctx, spec, snapshot, cfg)
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	return m, nil
}

func (s *Source) fork(ctx context.Context, spec Spec, snapshot *Snapshot, cfg Config) (*Machine, error) {
	qemu, err := s.QEMU(ctx, spec.Image.Arch)
	if err == nil && qemu.ID != spec.QEMU.ID { // it was replaced since the machine began
		err = &OtherHostError{"QEMU", spec.QEMU.Version + " (" + spec.QEMU.ID + ")", qemu.Version + " (" + qemu.ID + ")"}
	}
	if err != nil {
		return nil, err
	}
	m, err := s.start(ctx, spec, snapshot)
	if err != nil {
		return nil, err
	}
	m.Origin = Resumed
	return m, s.open(ctx, m, cfg)
}

// Rejoin continues with the conversation of a machine that was resumed or forked (guest.Rejoin).
func (m *Machine) Rejoin(ctx context.Context) (*guest.Conn, error) {
	timed, cancel := context.WithTimeout(ctx, connectDeadline)
	defer cancel()
	m.watch()
	return guest.Rejoin(timed, m.network)
}
