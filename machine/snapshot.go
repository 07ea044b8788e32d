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

// Snapshot is what a machine starts from: the memory of a stopped one, and the state of
// its devices. Templates, pauses, forks and a debugger's snapshots are it. A machine may be started
// on the memory at once, and restored when it is Ready.
type Snapshot struct {
	Memory  *os.File
	Devices []byte
	Created time.Time
	Place   []int64 // the offsets in the memory of its guest's place, nil if there is none
	File    bool    // the memory is the file that it is kept in
	fill    *fill
	owner   bool // of the filling: Close waits for it
}

// fill is the filling of a snapshot's memory, which continues beside the start of QEMU: both take some ten
// milliseconds.
type fill struct {
	done chan struct{}
	err  error // when done is closed
}

// filled returns a snapshot that is whole.
func filled(memory *os.File, devices []byte, created time.Time) *Snapshot {
	done := make(chan struct{})
	close(done)
	return &Snapshot{Memory: memory, Devices: devices, Created: created, fill: &fill{done: done}}
}

// Ready waits until the memory holds all of the snapshot and is sealed.
func (t *Snapshot) Ready() error {
	<-t.fill.done
	return t.fill.err
}

// Failed reports whether the memory could not be filled.
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

// Dup returns the snapshot again, to be closed by itself.
func (t *Snapshot) Dup() (*Snapshot, error) {
	memory, err := dup(t.Memory)
	if err != nil {
		return nil, fmt.Errorf("duplicate snapshot: %w", err)
	}
	return &Snapshot{Memory: memory, Devices: t.Devices, Created: t.Created, Place: t.Place, File: t.File, fill: t.fill},
		nil
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// start starts a QEMU of a spec on a snapshot, with private pages over its memory; it is then
// spawned.
func (s *Source) start(ctx context.Context, spec Spec, snapshot *Snapshot) (*Machine, error) {
	ours, theirs, err := netstack.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	m := &Machine{Spec: spec, Origin: Cloned, state: Spawned, devices: snapshot.Devices, place: snapshot.Place, link: ours}
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
		m.mapped.Close() // nil will do
		return nil, err
	}
	return m, nil
}

// capture stops a machine that QEMU runs, and copies its memory, which QEMU maps from mapped, to an empty file as long.
// It returns the state of its devices. began is the state that the machine started from, nil if all of its memory is in
// mapped. The machine may continue afterwards (vmm's Resume), also after an error.
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

// copyOf returns a memfd with what is in a file of memory.
func copyOf(memory *os.File) (*os.File, error) {
	return newCopy(memory, func(to *os.File) error { return CopyMemory(to, memory) })
}

// newCopy returns a memfd as long as a file of memory, filled.
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

// keptFiles is what the description of a snapshot in a folder says of its files.
type keptFiles struct {
	StateSHA256 string `json:"stateSha256"`
	// Of the memory's file when it was written: a file that was changed since has
	// another change time. Reading it all for a digest would take as long as a
	// clone does.
	MemorySize  int64 `json:"memorySize"`
	MemoryStamp int64 `json:"memoryStamp"`
}

// keep writes a snapshot into a folder: fill fills the memory, of that size, and returns the state.
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
	// A QEMU that maps it opens it by a descriptor, as a user of its own. Others can't: the folder
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

// maxKeptState bounds the state of a snapshot in a folder.
const maxKeptState = 64 << 20

// open opens what keep has written. stamped says that the memory was not changed since; the state
// is read and checked.
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

// readWhole reads a regular file of at most that many bytes.
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

// load returns the snapshot whose memory is in a file, of which it becomes the owner: the file itself
// for a QEMU that maps it, else a copy that is sealed, and that fills while QEMU starts.
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

// exchange has two names change places; a variable for tests, as if on a file system that can't. So is rename, as if
// the disk failed.
var (
	exchange = renameExchange
	rename   = os.Rename
)

// replaceTries bounds how often one that is read meanwhile (restore) is in the way: readers come seldom.
const replaceTries = 10

// replace puts a folder in the place of another one, in one step, and the other one, if there is
// one, in its. On a file system that can't exchange them (NFS, 9p, some of FUSE) the other one is moved aside
// before: who is killed in between has left it there (restore).
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
		_ = rename(aside(place), by) // else it is a leftover
	}
	return err
}

const asideSuffix = ".before"

// aside returns where a folder is while another one takes its place.
func aside(folder string) string {
	return filepath.Join(filepath.Dir(folder), "."+filepath.Base(folder)+asideSuffix)
}

// AsideOf returns the name of the folder that was moved aside under a name, where it was.
func AsideOf(name string) (folder string, ok bool) {
	name, isHidden := strings.CutPrefix(name, ".")
	name, isAside := strings.CutSuffix(name, asideSuffix)
	return name, isHidden && isAside && name != ""
}

// restore puts a folder back that was moved aside, where nothing has taken its place. It is no error where none was.
func restore(folder string) error {
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Lstat(aside(folder)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	err := rename(aside(folder), folder)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) { // somebody else has done it
		return nil
	}
	return err
}
