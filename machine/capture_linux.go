package machine

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// area is a mapped range of a file.
type area struct{ from, to, offset uint64 }

// mapping returns where a process maps a file.
func mapping(pid int, file *os.File) (list []area, err error) {
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	inode := st.Sys().(*syscall.Stat_t).Ino
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	var whole uint64
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var a area
		var rights, device string
		var ino uint64
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %d", &a.from, &a.to, &rights, &a.offset, &device,
			&ino); err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		if ino == inode && strings.HasPrefix(rights, "rw") {
			list = append(list, a)
			whole += a.to - a.from
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if whole != uint64(st.Size()) {
		return nil, fmt.Errorf("process %d maps %d bytes of the machine's %d", pid, whole, st.Size())
	}
	return list, nil
}

// Bits of an entry in /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61
	pageEntry   = 8 // bytes
)

// pagesAtOnce is the number of page entries in one read: those of 32 MiB.
const pagesAtOnce = 8 << 10

// copyPrivate copies a process's private pages of a mapped file.
func copyPrivate(to, mapped *os.File, pid int) error {
	areas, err := mapping(pid, mapped)
	if err != nil {
		return err
	}
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return err
	}
	defer pagemap.Close()
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer memory.Close()
	page := uint64(os.Getpagesize())
	entries, buf := make([]byte, pagesAtOnce*pageEntry), make([]byte, 1<<20)
	for _, a := range areas {
		for at := a.from; at < a.to; {
			n := min((a.to-at)/page, pagesAtOnce)
			if _, err := pagemap.ReadAt(entries[:n*pageEntry], int64(at/page*pageEntry)); err != nil {
				return err
			}
			private := func(i uint64) bool {
				e := binary.NativeEndian.Uint64(entries[i*pageEntry:])
				return e&(pagePresent|pageSwapped) != 0 && e&pageOfFile == 0
			}
			for i := uint64(0); i < n; {
				if !private(i) {
					i++
					continue
				}
				first := i
				for i < n && private(i) {
					i++
				}
				begin := at + first*page
				if err := copyBytes(to, memory, int64(begin-a.from+a.offset), int64(begin), int64((i-first)*page),
					buf); err != nil {
					return err
				}
			}
			at += n * page
		}
	}
	return nil
}

// copyBytes copies n bytes from an offset of one file to an offset of another.
func copyBytes(to, from *os.File, toAt, fromAt, n int64, buf []byte) error {
	for n > 0 {
		piece := buf[:min(n, int64(len(buf)))]
		got, err := from.ReadAt(piece, fromAt)
		if errors.Is(err, io.EOF) && got > 0 {
			err = nil
		}
		if err != nil {
			return err
		}
		if _, err := to.WriteAt(piece[:got], toAt); err != nil {
			return err
		}
		toAt, fromAt, n = toAt+int64(got), fromAt+int64(got), n-int64(got)
	}
	return nil
}

// digestPiece is the number of bytes that a thread of digestMemory hashes at a time.
const digestPiece = 1 << 20

// digestMemory returns a digest of a memory file that does not depend on the file's holes. It hashes the digests
// of all pieces that are not empty, each after its number.
func digestMemory(file *os.File) (string, error) {
	st, err := file.Stat()
	if err != nil {
		return "", err
	}
	sums := make([][]byte, (st.Size()+digestPiece-1)/digestPiece)
	var next atomic.Int64
	errs := make([]error, min(runtime.NumCPU(), 4))
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { errs[i] = digestPieces(file, sums, &next) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", fmt.Errorf("digest memory: %w", err)
	}
	all := sha256.New()
	var number [8]byte
	for i, sum := range sums {
		if sum != nil {
			binary.BigEndian.PutUint64(number[:], uint64(i))
			all.Write(number[:])
			all.Write(sum)
		}
	}
	return hex.EncodeToString(all.Sum(nil)), nil
}

func digestPieces(file *os.File, sums [][]byte, next *atomic.Int64) error {
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return err
	}
	defer file.Close()
	piece, empty := make([]byte, digestPiece), make([]byte, digestPiece)
	for {
		i := next.Add(1) - 1
		if i >= int64(len(sums)) {
			return nil
		}
		at := i * digestPiece
		data, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= at+digestPiece {
			continue
		}
		if err != nil {
			return err
		}
		n, err := file.ReadAt(piece, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !bytes.Equal(piece[:n], empty[:n]) {
			sum := sha256.Sum256(piece[:n])
			sums[i] = sum[:]
		}
	}
}

// processor identifies the host's processor by the unchanging fields of the first one in /proc/cpuinfo.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), "\n\n")
	sum := sha256.New()
	for line := range strings.Lines(first) {
		switch name, _, _ := strings.Cut(line, ":"); strings.TrimSpace(name) {
		case "vendor_id", "cpu family", "model", "model name", "stepping", "flags", "CPU implementer", "CPU architecture",
			"CPU variant", "CPU part", "CPU revision", "Features":
			_, _ = io.WriteString(sum, line)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}
