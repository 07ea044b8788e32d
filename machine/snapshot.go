package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/vmm"
)

// Snapshot holds the memory of a stopped machine and the state of its devices. Templates, pauses, forks and a
// debugger's snapshots are all a Snapshot. A new machine may start on the memory at once, and is restored when
// the snapshot is Ready.
type Snapshot struct {
	Memory  *os.File
	Devices []byte
	Created time.Time
	File    bool // the memory is the stored file itself
	fill    *fill
	owner   bool // of the filling: Close waits for it
}

// fill is the copying of a snapshot's memory, which runs beside the start of QEMU: each takes some ten
// milliseconds.
type fill struct {
	done chan struct{}
	err  error // valid when done is closed
}

// filled returns a complete snapshot.
func filled(memory *os.File, devices []byte, created time.Time) *Snapshot {
	done := make(chan struct{})
	close(done)
	return &Snapshot{Memory: memory, Devices: devices, Created: created, fill: &fill{done: done}}
}

// Ready waits until the memory is complete and sealed.
func (t *Snapshot) Ready() error {
	<-t.fill.done
	return t.fill.err
}

// Failed reports whether filling the memory failed.
func (t *Snapshot) Failed() bool {
	select {
	case <-t.fill.done:
		return t.fill.err != nil
	default:
		return false
	}
}

// Close frees the memory; machines that run on it keep theirs.
func (t *Snapshot) Close() error {
	if t.owner {
		<-t.fill.done
	}
	return t.Memory.Close()
}

// Dup returns a duplicate of the snapshot, which is closed separately.
func (t *Snapshot) Dup() (*Snapshot, error) {
	memory, err := dup(t.Memory)
	if err != nil {
		return nil, fmt.Errorf("duplicate snapshot: %w", err)
	}
	return &Snapshot{Memory: memory, Devices: t.Devices, Created: t.Created, File: t.File, fill: t.fill},
		nil
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// start starts a QEMU of a spec on a snapshot, with private pages over its memory. The machine is then spawned.
func (s *Source) start(ctx context.Context, spec Spec, snapshot *Snapshot) (*Machine, error) {
	ours, theirs, err := netstack.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	m := &Machine{Spec: spec, Origin: Cloned, state: Spawned, devices: snapshot.Devices, link: ours}
	cfg := vmm.Config{Memory: snapshot.Memory, MemoryFile: snapshot.File, State: snapshot.Devices, NIC: theirs}
	if spec.Life == Lasting {
		cfg.Lasting = true
		if m.mapped, err = dup(snapshot.Memory); err != nil {
			ours.Close()
			return nil, fmt.Errorf("start machine: %w", err)
		}
	}
	if m.vm, err = vmm.Start(ctx, s.config(spec, cfg)); err == nil {
		if err = snapshot.Ready(); err != nil {
			m.vm.Close()
		}
	}
	if err != nil {
		ours.Close()
		m.mapped.Close() // nil is allowed
		return nil, err
	}
	return m, nil
}

// capture stops a machine and copies its memory, which QEMU maps from mapped, to an empty file of the same
// length. It returns the device state. began is the machine's initial device state, nil if all of its memory is
// in mapped. The machine may continue afterwards (vmm's Resume), also after an error.
func capture(ctx context.Context, vm *vmm.Machine, mapped *os.File, began []byte, to *os.File) (devices []byte,
	err error) {
	if began == nil {
		devices, err = vm.StopAndSave(ctx)
	} else {
		devices, err = vm.SaveDevices(ctx, began)
	}
	if err != nil {
		return nil, err
	}
	if err := CopyMemory(to, mapped); err != nil || began == nil {
		return devices, err
	}
	if err := copyPrivate(to, mapped, vm.Pid()); err != nil {
		return nil, fmt.Errorf("copy memory: %w", err)
	}
	return devices, nil
}

// copyOf returns a memfd with the content of a memory file.
func copyOf(memory *os.File) (*os.File, error) {
	return newCopy(memory, func(to *os.File) error { return CopyMemory(to, memory) })
}

// newCopy returns a filled memfd as long as a memory file.
func newCopy(memory *os.File, fill func(to *os.File) error) (*os.File, error) {
	st, err := memory.Stat()
	if err != nil {
		return nil, err
	}
	to, err := NewMemory(st.Size())
	if err != nil {
		return nil, err
	}
	if err := fill(to); err != nil {
		to.Close()
		return nil, err
	}
	return to, nil
}

const (
	memoryName = "memory"
	stateName  = "state"
)

// keptFiles describes the files of a snapshot in a folder.
type keptFiles struct {
	StateSHA256 string `json:"stateSha256"`
	// Properties of the memory file when it was written: a later change also changes its change time. Reading all
	// of it for a digest would take as long as a clone does.
	MemorySize  int64 `json:"memorySize"`
	MemoryStamp int64 `json:"memoryStamp"`
}

// keep writes a snapshot into a folder: fill fills the memory, of the given size, and returns the device state.
// settle, if not nil, is called with the memory when all of it is written.
func keep(dir string, size int64, fill func(memory *os.File) (state []byte, err error),
	settle func(memory *os.File) error) (k keptFiles, err error) {
	memory, err := os.OpenFile(filepath.Join(dir, memoryName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return k, err
	}
	defer memory.Close()
	if err := memory.Truncate(size); err != nil {
		return k, err
	}
	state, err := fill(memory)
	if err != nil {
		return k, err
	}
	// A QEMU that maps the file opens it by descriptor, as another user. Other users can't reach it: the folder
	// is 0700.
	if err := memory.Chmod(0o644); err != nil {
		return k, err
	}
	if settle != nil {
		if err := settle(memory); err != nil {
			return k, err
		}
	}
	st, err := memory.Stat()
	if err != nil {
		return k, err
	}
	sum := sha256.Sum256(state)
	k = keptFiles{StateSHA256: hex.EncodeToString(sum[:]), MemorySize: st.Size(), MemoryStamp: changeTime(st)}
	return k, errors.Join(os.WriteFile(filepath.Join(dir, stateName), state, 0o600), memory.Close())
}

// maxKeptState bounds the device state of a snapshot in a folder.
const maxKeptState = 64 << 20

// open opens what keep has written. stamped reports that the memory is unchanged since then; open reads the state
// and checks its digest.
func (k keptFiles) open(dir *os.Root) (memory *os.File, state []byte, stamped bool, err error) {
	if state, err = readWhole(dir, stateName, maxKeptState); err != nil {
		return nil, nil, false, err
	}
	if sum := sha256.Sum256(state); hex.EncodeToString(sum[:]) != k.StateSHA256 {
		return nil, nil, false, errors.New("the digest of its state is wrong")
	}
	if memory, err = dir.OpenFile(memoryName, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return nil, nil, false, err
	}
	st, err := memory.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() != k.MemorySize) {
		err = errors.New("its memory was changed")
	}
	if err != nil {
		memory.Close()
		return nil, nil, false, err
	}
	return memory, state, changeTime(st) == k.MemoryStamp, nil
}

// readWhole reads a regular file; most is its maximum size in bytes.
func readWhole(dir *os.Root, name string, most int64) ([]byte, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is no regular file", name))
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return text, err
}

// load returns the snapshot with its memory in a file, and takes ownership of the file. For a QEMU that maps the
// file, it is the memory; else the memory is a sealed copy that fills while QEMU starts.
func load(memory *os.File, devices []byte, created time.Time, mapped bool) (*Snapshot, error) {
	if mapped {
		t := filled(memory, devices, created)
		t.File = true
		return t, nil
	}
	st, err := memory.Stat()
	var to *os.File
	if err == nil {
		to, err = NewMemory(st.Size())
	}
	if err != nil {
		memory.Close()
		return nil, err
	}
	t := &Snapshot{Memory: to, Devices: devices, Created: created, fill: &fill{done: make(chan struct{})}, owner: true}
	go func() { // Close waits for it
		defer close(t.fill.done)
		defer memory.Close()
		t.fill.err = errors.Join(CopyMemory(to, memory), SealMemory(to))
	}()
	return t, nil
}

// exchange swaps two names; tests replace it to simulate a file system that can't. Tests replace rename to
// simulate a failing disk.
var (
	exchange = renameExchange
	rename   = os.Rename
)

// replaceTries bounds the retries when a reader's restore interferes; readers are rare.
const replaceTries = 10

// replace swaps a folder with another one, if there is one, atomically. On a file system that can't swap (NFS, 9p, some
// of FUSE) the other folder is first moved aside. A process killed in between leaves it there (restore).
func replace(place, by string) (err error) {
	for range replaceTries {
		if err = replaceOnce(place, by); !errors.Is(err, fs.ErrExist) { // ENOTEMPTY, EEXIST
			break
		}
	}
	return err
}

func replaceOnce(place, by string) error {
	err := exchange(by, place)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = rename(by, place)
	case errors.Is(err, unix.EINVAL), errors.Is(err, errors.ErrUnsupported): // ENOSYS, EOPNOTSUPP
		if err = restore(place); err == nil {
			err = os.RemoveAll(aside(place))
		}
		if err != nil {
			return err
		}
		err = rename(place, aside(place))
		if errors.Is(err, fs.ErrNotExist) {
			return rename(by, place)
		}
		if err != nil {
			return err
		}
		if err = rename(by, place); err != nil {
			return errors.Join(err, restore(place))
		}
		_ = rename(aside(place), by) // otherwise it is a leftover
	}
	return err
}

const asideSuffix = ".before"

// aside returns the name of a folder while it is moved aside.
func aside(folder string) string {
	return filepath.Join(filepath.Dir(folder), "."+filepath.Base(folder)+asideSuffix)
}

// AsideOf returns the original name of a folder that was moved aside.
func AsideOf(name string) (folder string, ok bool) {
	name, isHidden := strings.CutPrefix(name, ".")
	name, isAside := strings.CutSuffix(name, asideSuffix)
	return name, isHidden && isAside && name != ""
}

// restore puts back a folder that was moved aside, unless something has taken its place. If none was, that is not an
// error.
func restore(folder string) error {
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Lstat(aside(folder)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	err := rename(aside(folder), folder)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) { // another process has done it
		return nil
	}
	return err
}
