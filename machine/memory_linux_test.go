package machine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// Several copies at once give the same as one, and holes stay holes.
func TestCopyMemory(t *testing.T) {
	const size = 3*copyPiece + 12345
	from, err := NewMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := NewMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	written := map[int64][]byte{
		0:                    []byte("the beginning"),
		copyPiece - 5:        []byte("from one piece to the next"),
		2*copyPiece - 3*4096: bytes.Repeat([]byte("pages"), 2*4096),
		size - 7:             []byte("the end"),
	}
	for at, text := range written {
		if _, err := from.WriteAt(text, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := CopyMemory(to, from); err != nil {
		t.Fatal(err)
	}
	for at, text := range written {
		got := make([]byte, len(text))
		if _, err := to.ReadAt(got, at); err != nil || !bytes.Equal(got, text) {
			t.Errorf("at %d: %v %.40q", at, err, got)
		}
	}
	if a, b := blocks(t, from), blocks(t, to); a != b {
		t.Errorf("of %d blocks came %d", a, b)
	}
	if err := SealMemory(to); err != nil { // nobody has it open for writing
		t.Error(err)
	}
}

// Nobody can write a template's memory once it is sealed, whatever a compromised QEMU does with its descriptor. It
// can't be sealed while somebody can write to it.
func TestAttackSealedMemory(t *testing.T) {
	const size = 8192
	memory := func() *os.File {
		f, err := NewMemory(size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	f, before := memory(), bytes.Repeat([]byte("x"), size)
	if _, err := f.WriteAt(before, 0); err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	shared := func() error {
		_, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	}
	again := func() error {
		other, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0)
		if err == nil {
			defer other.Close()
			_, err = other.WriteAt([]byte("evil"), 0)
		}
		return err
	}
	private := func() error {
		m, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		if err == nil {
			copy(m, "its own page")
			err = unix.Munmap(m)
		}
		return err
	}
	if err := SealMemory(f); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		try  func() error
		want error
	}{
		{"written", func() error { _, err := f.WriteAt([]byte("evil"), 0); return err }, unix.EPERM},
		{"copied to", func() error {
			from := memory()
			_, err := from.WriteAt([]byte("evil"), 0)
			return errors.Join(err, CopyMemory(f, from))
		}, unix.EPERM},
		{"mapped for writing", shared, unix.EPERM},
		{"opened again and written", again, unix.EPERM},
		{"made shorter", func() error { return f.Truncate(1) }, unix.EPERM},
		{"made longer", func() error { return f.Truncate(2 * size) }, unix.EPERM},
		{"punched", func() error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
		}, unix.EPERM},
		{"sealed less", func() error { _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, 0); return err }, unix.EPERM},
		{"mapped privately", private, nil},
	} {
		got := fmt.Sprint(errors.Is(c.try(), c.want))
		after := make([]byte, size)
		if _, err := f.ReadAt(after, 0); err != nil || !bytes.Equal(after, before) {
			got += ", and it has changed"
		}
		attack.Check(t, fmt.Sprintf("a template's memory is %s, which gets %v", c.name, c.want), "true", got)
	}
	held := memory()
	m, err := unix.Mmap(int(held.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(errors.Is(SealMemory(held), unix.EBUSY))
	attack.Check(t, "memory is sealed that somebody has mapped for writing, which gets "+unix.EBUSY.Error(), "true", got)
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
}

func blocks(t *testing.T, f *os.File) int64 {
	t.Helper()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Blocks
}
