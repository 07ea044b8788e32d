package vmm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// The guest can write to a microvm's firmware. Below 1 MiB it is at the usual place of a PC, and Nanos puts its page
// tables there. The firmware is not part of Config.Memory, and xen-save-devices-state leaves out all memory. So it is
// read from QEMU and added to the memory sections that the machine began with.

// firmwareBlock is QEMU's name for the firmware (hw/i386/x86.c). Its second copy ends at firmwareEnd.
const (
	firmwareBlock = "pc.bios"
	firmwareEnd   = 1 << 32
)

// The form of memory in a migration's state (migration/ram.c, migration/savevm.c): sections, each with a number, of
// records, and a footer. Each record begins with an address and, in its lower bits, flags.
const (
	startSection, partSection, endSection = 1, 2, 3
	footerSize                            = 1 + 4 // section type, section number
	guestPage                             = 4096

	ramZero, ramSize, ramPage, ramEnd, ramContinue = 0x02, 0x04, 0x08, 0x10, 0x20
)

var errNoMemorySections = errors.New("the machine began with no memory in a form that is known")

// memorySections describes the memory sections at the beginning of a state.
type memorySections struct {
	number   []byte // number of the sections
	firmware int64  // size of the firmware block, 0 if there is none
	end      int    // offset of the data after the sections
}

// readMemory finds the memory sections. It walks every record, since the guest may have chosen a section's content.
func readMemory(state []byte) (m memorySections, err error) {
	const name = "\x03ram\x00\x00\x00\x00\x00\x00\x00\x04" // name, instance and version
	at := bytes.Index(state, []byte(name))
	if at < stateHead+footerSize || state[at-footerSize] != startSection {
		return m, errNoMemorySections
	}
	m.number = state[at-4 : at]
	r := bytes.NewReader(state[at+len(name):])
	for kind := byte(startSection); ; {
		if err := m.records(r, bytes.Contains(state[:at], []byte("x-ignore-shared"))); err != nil {
			return m, errNoMemorySections
		}
		var foot, head [footerSize]byte
		if _, err := io.ReadFull(r, foot[:]); err != nil || foot[0] != 0x7e || !bytes.Equal(foot[1:], m.number) {
			return m, errNoMemorySections
		}
		if kind == endSection {
			m.end = len(state) - r.Len()
			return m, nil
		}
		if _, err := io.ReadFull(r, head[:]); err != nil || (head[0] != partSection && head[0] != endSection) ||
			!bytes.Equal(head[1:], m.number) {
			return m, errNoMemorySections
		}
		kind = head[0]
	}
}

// records reads the records of one section. shared means that each block's address follows its size.
func (m *memorySections) records(r *bytes.Reader, shared bool) error {
	name := func() (string, error) {
		n, err := r.ReadByte()
		text := make([]byte, n)
		if err == nil {
			_, err = io.ReadFull(r, text)
		}
		return string(text), err
	}
	number := func() (n uint64, err error) {
		err = binary.Read(r, binary.BigEndian, &n)
		return n, err
	}
	for {
		head, err := number()
		if err != nil {
			return err
		}
		flags := head & (guestPage - 1)
		var skip int64
		switch flags &^ ramContinue {
		case ramEnd:
			return nil
		case ramSize:
			for left := head - flags; left > 0; {
				block, err1 := name()
				size, err2 := number()
				if err := errors.Join(err1, err2); err != nil || size == 0 || size > min(left, math.MaxInt64) {
					return errNoMemorySections
				}
				if shared {
					skip = 8
				}
				if block == firmwareBlock {
					m.firmware = int64(size)
				}
				left -= size
				if _, err := io.CopyN(io.Discard, r, skip); err != nil {
					return err
				}
			}
			continue
		case ramZero:
			skip = 1
		case ramPage:
			skip = guestPage
		default:
			return errNoMemorySections
		}
		if flags&ramContinue == 0 {
			if _, err := name(); err != nil {
				return err
			}
		}
		if _, err := io.CopyN(io.Discard, r, skip); err != nil {
			return err
		}
	}
}

// firmwareSection returns a section with the firmware, as pages of its block. The last page is padded with zeros.
func firmwareSection(number, firmware []byte) []byte {
	section := append([]byte{partSection}, number...)
	for at := 0; at < len(firmware); at += guestPage {
		flags := uint64(ramPage)
		if at > 0 {
			flags |= ramContinue
		}
		section = binary.BigEndian.AppendUint64(section, uint64(at)|flags)
		if at == 0 {
			section = append(append(section, byte(len(firmwareBlock))), firmwareBlock...)
		}
		page := make([]byte, guestPage)
		copy(page, firmware[at:])
		section = append(section, page...)
	}
	section = binary.BigEndian.AppendUint64(section, ramEnd)
	return append(append(section, 0x7e), number...)
}

// maxFirmware bounds a machine's firmware. OVMF's is the largest that QEMU ships for a PC.
const maxFirmware = 16 << 20

// readFirmware reads size bytes of a stopped machine's firmware.
func (m *Machine) readFirmware(ctx context.Context, size int64) ([]byte, error) {
	if size == 0 {
		return nil, nil
	}
	if size < 0 || size%guestPage != 0 || size > maxFirmware {
		return nil, fmt.Errorf("a firmware of %d bytes", size)
	}
	var said string
	if err := m.Monitor.Do(ctx, "human-monitor-command",
		map[string]any{"command-line": fmt.Sprintf("gpa2hva %#x", firmwareEnd-size)}, &said); err != nil {
		return nil, err
	}
	var guest, host int64
	var block string
	if _, err := fmt.Sscanf(said, "Host virtual address for 0x%x (%s is 0x%x", &guest, &block, &host); err != nil ||
		block != firmwareBlock+")" {
		return nil, fmt.Errorf("where the firmware is, QEMU says %q", said)
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", m.Pid()))
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	firmware := make([]byte, size)
	_, err = memory.ReadAt(firmware, host)
	return firmware, err
}
