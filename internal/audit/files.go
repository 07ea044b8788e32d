package audit

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/unitask/unitask/internal/filelock"
)

// files are the open files of a log, whose lock is held.
type files struct {
	lines, hashes, index *os.File
	pending              *os.File // the current append
	n                    int64    // lines
	end                  int64    // of these
}

// open takes the lock, and completes the append of a process that died. check tests whether the files are
// consistent.
func (l Log) open() (f *files, done func(), err error) {
	lock, err := filelock.Take(l.name(lockFile))
	if err != nil {
		return nil, nil, err
	}
	f = &files{}
	done = func() {
		for _, file := range f.all() {
			file.Close()
		}
		lock.Unlock()
	}
	for name, file := range map[string]**os.File{linesFile: &f.lines, hashesFile: &f.hashes, indexFile: &f.index,
		pendingFile: &f.pending} {
		if *file, err = l.file(name, os.O_RDWR|os.O_CREATE); err != nil {
			done()
			return nil, nil, err
		}
	}
	if err := errors.Join(f.redo(), f.count()); err != nil {
		done()
		return nil, nil, err
	}
	if f.n == 0 {
		if err := syncDir(l.dir); err != nil {
			done()
			return nil, nil, err
		}
	}
	return f, done, nil
}

// file opens one of the log's files. It refuses links and other kinds.
func (l Log) file(name string, how int) (*os.File, error) {
	f, err := os.OpenFile(l.name(name), how|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, cmp.Or(err, fmt.Errorf("%s is no regular file: `unitask audit` needs one", f.Name()))
	}
	return f, nil
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
	}
	return err
}

// all returns the open files.
func (f *files) all() []*os.File {
	return slices.DeleteFunc([]*os.File{f.lines, f.hashes, f.index, f.pending},
		func(file *os.File) bool { return file == nil })
}

// count finds the number of lines, and where they end.
func (f *files) count() error {
	st, err := f.index.Stat()
	if err == nil {
		f.n = st.Size() / indexed
		f.end, err = f.endOf(f.n)
	}
	return err
}

// check returns an error unless the files are as long as an append leaves them.
func (f *files) check() error {
	for file, want := range map[*os.File]int64{f.lines: f.end, f.hashes: hashesEnd(f.n), f.index: f.n * indexed} {
		st, err := file.Stat()
		if err != nil {
			return err
		}
		if st.Size() != want {
			return fmt.Errorf(
				"%s has %d bytes, and had %d: `unitask audit verify` says more; move the log's folder away to begin a new one",
				file.Name(), st.Size(), want)
		}
	}
	return nil
}

// hashesEnd returns the length of the hashes of n lines.
func hashesEnd(n int64) int64 {
	if n == 0 {
		return 0
	}
	return tlog.StoredHashCount(n) * tlog.HashSize
}

// endOf returns where the first n lines end.
func (f *files) endOf(n int64) (int64, error) {
	if n == 0 {
		return 0, nil
	}
	var b [indexed]byte
	_, err := f.index.ReadAt(b[:], (n-1)*indexed)
	return int64(binary.BigEndian.Uint64(b[:])), err
}

// An append is first written to a separate file: a checksum, the number of lines, where they end, and the lines.
// So an append is done completely or not at all, and no crash can cause any other inconsistency.
const (
	pendingLines = sha256.Size
	pendingEnd   = pendingLines + 8
	pendingText  = pendingEnd + 8
)

// append appends lines to the existing ones.
func (f *files) append(text []byte) error {
	plan := make([]byte, pendingLines, pendingText+len(text))
	plan = binary.BigEndian.AppendUint64(plan, uint64(f.n))
	plan = binary.BigEndian.AppendUint64(plan, uint64(f.end))
	plan = append(plan, text...)
	sum := sha256.Sum256(plan[pendingLines:])
	copy(plan, sum[:])
	if _, err := f.pending.WriteAt(plan, 0); err != nil {
		return errors.Join(err, f.pending.Truncate(0))
	}
	if err := f.pending.Sync(); err != nil {
		return errors.Join(err, f.pending.Truncate(0))
	}
	return f.write(text)
}

// redo repeats a planned append that may be incomplete.
func (f *files) redo() error {
	plan, err := io.ReadAll(io.LimitReader(f.pending, pendingText+maxAppend+1))
	if err != nil || len(plan) == 0 {
		return err
	}
	if sum := sha256.Sum256(plan[min(pendingLines, len(plan)):]); len(plan) < pendingText ||
		len(plan) > pendingText+maxAppend || !bytes.Equal(sum[:], plan[:pendingLines]) {
		return f.pending.Truncate(0) // nothing else was started
	}
	text := plan[pendingText:]
	f.n, f.end = int64(binary.BigEndian.Uint64(plan[pendingLines:])), int64(binary.BigEndian.Uint64(plan[pendingEnd:]))
	n := f.n + int64(bytes.Count(text, []byte("\n")))
	for file, between := range map[*os.File][2]int64{
		f.lines:  {f.end, f.end + int64(len(text))},
		f.hashes: {hashesEnd(f.n), hashesEnd(n)},
		f.index:  {f.n * indexed, n * indexed},
	} {
		st, err := file.Stat()
		if err != nil {
			return err
		}
		if st.Size() < between[0] || st.Size() > between[1] {
			return f.pending.Truncate(0) // not by a crash: check and Verify tell
		}
	}
	if end, err := f.endOf(f.n); err != nil || end != f.end {
		return errors.Join(err, f.pending.Truncate(0))
	}
	return f.write(text)
}

// write adds lines to the files; when it returns they are on the disk.
func (f *files) write(text []byte) error {
	if _, err := f.lines.WriteAt(text, f.end); err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		stored, err := tlog.StoredHashes(f.n, line, f)
		if err != nil {
			return err
		}
		var hashes []byte
		for _, h := range stored {
			hashes = append(hashes, h[:]...)
		}
		if _, err := f.hashes.WriteAt(hashes, hashesEnd(f.n)); err != nil {
			return err
		}
		f.end += int64(len(line))
		if _, err := f.index.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(f.end)), f.n*indexed); err != nil {
			return err
		}
		f.n++
	}
	var errs [3]error
	var group sync.WaitGroup
	for i, file := range []*os.File{f.lines, f.hashes, f.index} {
		group.Go(func() { errs[i] = file.Sync() })
	}
	group.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	return f.pending.Truncate(0)
}

// ReadHashes implements tlog.HashReader.
func (f *files) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, n := range at {
		if _, err := f.hashes.ReadAt(out[i][:], n*tlog.HashSize); err != nil {
			return nil, fmt.Errorf("read hash %d of the audit log: %w", n, err)
		}
	}
	return out, nil
}
