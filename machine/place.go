package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/vmm"
)

// A place is a file in a template's guest whose pages can have other content when a clone starts. Large data is
// then already there, and need not pass through the guest's network. The pages are found by their marks
// (contract.PlaceMark) in the snapshot's memory, wherever the guest's kernel has them.

const placePage = 4096

// findPlace returns the offsets of the place's pages in a memory file, in the file's order; nil if there are
// none.
func findPlace(memory *os.File) ([]int64, error) {
	mark := []byte(contract.PlaceMark)
	for i := range mark {
		mark[i]++
	}
	found := make([]int64, contract.PlaceSize/placePage)
	left := len(found)
	piece := make([]byte, 1<<20)
	empty := make([]byte, placePage)
	for at := int64(0); ; at += int64(len(piece)) {
		data, err := unix.Seek(int(memory.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		at = data &^ (placePage - 1)
		n, err := memory.ReadAt(piece, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		for in := 0; in+placePage <= n; in += placePage {
			rest, marked := bytes.CutPrefix(piece[in:in+placePage], mark)
			if !marked {
				continue
			}
			number := binary.LittleEndian.Uint32(rest)
			if rest = rest[4:]; number >= uint32(len(found)) || found[number] != 0 || !bytes.Equal(rest, empty[:len(rest)]) {
				return nil, nil // not as expected: there is no place
			}
			found[number] = at + int64(in)
			left--
		}
	}
	if left > 0 {
		return nil, nil
	}
	return found, nil
}

// putInPlace makes a spawned clone start with content in its place. That needs a template with a large enough
// place, and a device state of a known format.
func (m *Machine) putInPlace(what func() []byte) {
	if m.state != Spawned || what == nil || m.place == nil {
		return
	}
	content := what()
	if len(content) == 0 || (len(content)+placePage-1)/placePage > len(m.place) {
		return
	}
	if devices, err := vmm.Place(m.devices, m.place, content); err == nil {
		m.devices, m.placed = devices, true
	}
}

// Placed reports whether the guest started with the content of Config.Place in its place.
func (m *Machine) Placed() bool { return m.placed }
