package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// NewMemory returns an empty memfd of size bytes for a machine's memory.
func NewMemory(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("unitask-memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "unitask-memory")
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, fmt.Errorf("create memory: %w", err)
	}
	return f, nil
}

// SealMemory makes a memfd permanently read-only for everybody. QEMU opens its memory for writing even where it maps it
// privately. The seal keeps a compromised QEMU from changing the template of the next run.
func SealMemory(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
		unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	if err != nil {
		return fmt.Errorf("seal memory: %w", err)
	}
	return nil
}

// copyPiece is the number of bytes that a thread of CopyMemory copies at a time.
const copyPiece = 32 << 20

// CopyMemory copies everything but holes from one memory file to another, which must be empty and of the same
// length. For some hundred megabytes, two processors need half as long as one.
func CopyMemory(to, from *os.File) error {
	st, err := from.Stat()
	if err != nil {
		return err
	}
	var next atomic.Int64
	errs := make([]error, min(runtime.NumCPU(), 4))
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { errs[i] = copyPieces(to, from, st.Size(), &next) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("copy memory: %w", err)
	}
	return nil
}

// copyPieces copies one piece after the other, each starting at next, with descriptors that have their own file
// offsets.
func copyPieces(to, from *os.File, size int64, next *atomic.Int64) error {
	from, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", from.Fd()))
	if err != nil {
		return err
	}
	defer from.Close()
	if to, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", to.Fd()), os.O_WRONLY, 0); err != nil {
		return err
	}
	defer to.Close()
	for {
		at := next.Add(copyPiece) - copyPiece
		if at >= size {
			return nil
		}
		if err := copyRange(to, from, at, min(at+copyPiece, size)); err != nil {
			return err
		}
	}
}

func copyRange(to, from *os.File, at, most int64) error {
	for at < most {
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && begin >= most {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := unix.Seek(int(to.Fd()), begin, unix.SEEK_SET); err != nil {
			return err
		}
		for at = begin; at < min(end, most); {
			n, err := unix.Sendfile(int(to.Fd()), int(from.Fd()), &at, int(min(end, most)-at))
			if err != nil {
				return err
			}
			if n == 0 {
				return io.ErrUnexpectedEOF
			}
		}
	}
	return nil
}

// CanClone reports that this system supports snapshots.
const CanClone = true

// renameExchange swaps two folders atomically.
func renameExchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// changeTime returns the time of an inode's last change, in ns.
func changeTime(st os.FileInfo) int64 {
	t := st.Sys().(*syscall.Stat_t).Ctim
	return t.Sec*1e9 + t.Nsec
}
