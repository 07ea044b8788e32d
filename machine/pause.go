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

// A paused machine is a snapshot in a separate folder: memory, device state and a description. The description holds
// the digests of both and the properties that must match where the machine is resumed. A new pause replaces the
// previous one atomically.

// ErrPause means that a paused machine is damaged or not a paused machine at all.
var ErrPause = errors.New("the paused machine is damaged")

// ErrLasting means that a machine was not made to be paused.
var ErrLasting = errors.New("this machine lasts for one run only")

// OtherHostError means that this host differs from the one where a machine was paused. The paused machine is
// intact, and can be resumed where What is as it was.
type OtherHostError struct{ What, Paused, Here string }

func (e *OtherHostError) Error() string {
	return fmt.Sprintf(
		"the machine was paused with %s %s, and here it is %s: it can be resumed only where that is as it was", e.What,
		e.Paused, e.Here)
}

const (
	pauseName    = PauseFile
	pauseVersion = 1
	maxPauseText = MaxPauseText // bytes of a pause's description
)

// PauseFile is the description's file in a paused machine's folder, of at most MaxPauseText bytes.
const (
	PauseFile    = "pause.json"
	MaxPauseText = 8 << 20
)

// Pause describes a paused machine.
type Pause struct {
	Version int       `json:"version"`
	At      time.Time `json:"at"`
	Class   Class     `json:"shape"`
	// Properties that must match where the machine is resumed, beside the class.
	ImageDigest string `json:"imageDigest"`
	QEMU        string `json:"qemu"`
	QEMUID      string `json:"qemuId"`
	Accel       string `json:"accel"`
	Processor   string `json:"processor,omitempty"` // the host's, if the guest uses it
	TSCKHz      int    `json:"tscKHz,omitempty"`    // the guest's clock frequency

	keptFiles
	MemorySHA256 string `json:"memorySha256"` // from digestMemory

	// Note is what the machine's owner needs to continue with it (Machine.Note).
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

// differs returns an error that names the first required property that this host does not match.
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
	const tolerance = 100 // allowed deviation is 1/100: each boot measures slightly differently
	if d := p.TSCKHz - here.TSCKHz; max(d, -d) > here.TSCKHz/tolerance {
		return &OtherHostError{"a processor's counter of", strconv.Itoa(p.TSCKHz) + " kHz",
			strconv.Itoa(here.TSCKHz) + " kHz"}
	}
	return nil
}

// ReadPause reads the description of the machine that was paused into a folder. The error is fs.ErrNotExist if
// there is none.
func ReadPause(folder string) (Pause, error) {
	dir, err := openPause(folder)
	if err != nil {
		return Pause{}, err
	}
	defer dir.Close()
	return readPause(dir)
}

// openPause opens the folder of a paused machine. Only this user may have access to the folder.
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

// damaged wraps an error of reading a paused machine as ErrPause, unless it is an error of the host, which says
// nothing about the files.
func damaged(path string, err error) error {
	var host syscall.Errno
	if errors.As(err, &host) && !slices.Contains([]syscall.Errno{syscall.ENOENT, syscall.ENOTDIR, syscall.EISDIR,
		syscall.ELOOP, syscall.ENXIO}, host) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return fmt.Errorf("%w: %s: %v", ErrPause, path, err)
}

// pauseStep is called with the name of each step of a pause, for tests.
var pauseStep = func(string) {}

// continueDeadline bounds how long a machine that could not be paused may take to continue.
const continueDeadline = 10 * time.Second

// Pause stops a machine that lasts, saves it in a folder in place of the previous pause, and closes it. A crash
// at any time leaves either the old pause or the new one. After an error the folder is unchanged, and the machine
// continues if it can. Data in transit between host and guest is lost: there should be none. One process at a
// time may use a folder.
func (s *Source) Pause(ctx context.Context, m *Machine, folder string) error {
	if m.mapped == nil {
		return fmt.Errorf("pause: %w", ErrLasting)
	}
	if err := s.pause(ctx, m, folder); err != nil {
		err = fmt.Errorf("pause into %s: %w", folder, err)
		if errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w: the machine continues; make room there and pause it again", err)
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

// settle replaces a folder with a new pause durably. After an error the old pause is back in its place.
func settle(folder, tmp string) error {
	if err := replace(folder, tmp); err != nil {
		return err
	}
	pauseStep("replaced")
	err := syncFolder(filepath.Dir(folder))
	if err == nil {
		return nil
	}
	back := os.Rename(folder, tmp) // if there was none before
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

// leftover returns the name prefix of a pause's temporary folders.
func leftover(folder string) string { return "." + filepath.Base(folder) + ".pausing-" }

// RemoveLeftovers removes what a killed pause left beside a folder. It puts back a folder that was moved aside.
// If that fails, the folder stays, because it is the only copy.
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

// PauseBytes returns the disk space of a pause in a folder, in bytes. The error is that of the folder.
func PauseBytes(folder string) (bytes int64, err error) {
	files, err := os.ReadDir(folder)
	for _, f := range files {
		if st, err := f.Info(); err == nil && st.Mode().IsRegular() {
			bytes += allocated(st)
		}
	}
	return bytes, err
}

// RemovePause removes the machine that was paused into a folder, and all leftovers beside it: nothing can restore
// it.
func RemovePause(folder string) error {
	RemoveLeftovers(folder)
	return errors.Join(os.RemoveAll(aside(folder)), os.RemoveAll(folder))
}

// Resume starts the machine that was paused into a folder, where it stopped. Its guest then needs entropy, the
// time and a connection (Machine.Rejoin). The folder is unchanged. The spec must be that of the pause's class on
// this host (ReadPause). The error is an *OtherHostError if this host differs, ErrPause if the folder is damaged,
// and fs.ErrNotExist if there is none.
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
		if err == nil && !stamped { // it was copied or changed
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

// Snapshot takes a snapshot of a machine that lasts. The machine is stopped meanwhile, then continues.
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
		memory.Close() // nil is allowed
		return nil, fmt.Errorf("fork: %w", err)
	}
	return filled(memory, devices, time.Now()), nil
}

// Fork starts a machine that continues from the snapshot of another machine of the same spec, as Resume does.
// Pages that it writes are private. Fork may be called for several machines at once.
func (s *Source) Fork(ctx context.Context, spec Spec, snapshot *Snapshot, cfg Config) (*Machine, error) {
	m, err := s.fork(ctx, spec, snapshot, cfg)
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	return m, nil
}

func (s *Source) fork(ctx context.Context, spec Spec, snapshot *Snapshot, cfg Config) (*Machine, error) {
	qemu, err := s.QEMU(ctx, spec.Image.Arch)
	if err == nil && qemu.ID != spec.QEMU.ID { // QEMU was replaced since the machine started
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

// Rejoin resumes the conversation with a machine that was resumed or forked (guest.Rejoin).
func (m *Machine) Rejoin(ctx context.Context) (*guest.Conn, error) {
	timed, cancel := context.WithTimeout(ctx, connectDeadline)
	defer cancel()
	m.watch()
	return guest.Rejoin(timed, m.network)
}
