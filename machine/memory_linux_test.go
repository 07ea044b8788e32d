package machine

import (
	"bytes"
	"os"
	"syscall"
	"testing"
)

// What is copied by several at once is what one would have copied, and holes stay holes.
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
	if err := SealMemory(to); err != nil { // nobody holds it for writing
		t.Error(err)
	}
	short, err := NewMemory(1)
	if err != nil {
		t.Fatal(err)
	}
	defer short.Close()
	if err := SealMemory(short); err != nil {
		t.Fatal(err)
	}
	if err := CopyMemory(short, from); err == nil {
		t.Error("a sealed file was written to")
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
