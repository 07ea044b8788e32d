package jail

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A stage runs between the fork and QEMU: in the new process, it gives up what can't be given up from outside. It is a
// program of some forty instructions (stage_linux_*.s) that makes the system calls of a table one after the other. The
// last is the execve of QEMU. Table and program are written into an ELF file in memory for each start. So a stage needs
// no helper on the disk and no second copy of this program. It takes less than a millisecond, and works in every
// program that uses this package.
//
// A step that fails is reported on the status socket, with its number and the error. The step decides what follows: the
// next step, the end of its group, or the end of the process. The execve closes the socket, so its reader then knows
// the outcome of every step.

// Addresses of a stage in memory. The segments are 64 KiB apart, the largest page size.
const (
	codeBase  = 0x10000000
	dataBase  = 0x10100000
	tableBase = 0x10200000
	segment   = 0x10000

	maxSegment = 1 << 20 // of data or table
	codeSize   = 512     // bytes copied; the program is shorter
)

// The layout of a table: a head with the status socket's number, then the steps.
const (
	tableHead = 16

	stepCall   = 0  // the system call's number; -1 ends the stage
	stepArgs   = 8  // six arguments
	stepInto   = 56 // address for the result; 0 for none
	stepThen   = 64 // the next step after a success
	stepElse   = 72 // the next step after a failure; 0 ends the stage
	stepResult = 80 // the error, reported together with
	stepIndex  = 88 // the step's number
	stepSize   = 96

	reportSize = 16
	stageExit  = 126 // exit code of a stage that did not reach its execve
)

func stageAddress() unsafe.Pointer

// step is one system call.
type step struct {
	call uintptr
	args [6]uintptr
	into uintptr // address for the result
	// skip is the number of steps that a success skips.
	skip int
	// then tells what follows a failure.
	then failure
	// part is the layer or limit that does not hold after a failure.
	part string
	what string // the action, for the error: "mount /usr/bin/qemu"
}

// failure tells what follows a failed step.
type failure int

const (
	goOn    failure = iota // continue with the next step
	abandon                // continue at the end of the group
	giveUp                 // end the stage
)

// stage is a stage that is being built.
type stage struct {
	steps  []step
	ends   []int // by step: the end of its group
	opened int   // the first step of the open group, or -1
	data   []byte
}

func newStage() *stage { return &stage{opened: -1} }

// add appends a step and returns its number.
func (s *stage) add(st step) int {
	s.steps = append(s.steps, st)
	s.ends = append(s.ends, len(s.steps))
	return len(s.steps) - 1
}

// begin and end enclose a group: each of its steps requires the previous ones.
func (s *stage) begin() { s.opened = len(s.steps) }
func (s *stage) end() {
	for i := s.opened; i < len(s.steps); i++ {
		s.ends[i] = len(s.steps)
	}
	s.opened = -1
}

// bytes puts data into the stage and returns its address there, a multiple of 8.
func (s *stage) bytes(data []byte) uintptr {
	for len(s.data)%8 != 0 {
		s.data = append(s.data, 0)
	}
	at := dataBase + uintptr(len(s.data))
	s.data = append(s.data, data...)
	return at
}

func (s *stage) string(text string) uintptr { return s.bytes(append([]byte(text), 0)) }

// words puts 64-bit words into the stage.
func (s *stage) words(words ...uint64) uintptr {
	var data []byte
	for _, w := range words {
		data = binary.LittleEndian.AppendUint64(data, w)
	}
	return s.bytes(data)
}

// vector returns a null-terminated list of strings.
func (s *stage) vector(list []string) uintptr {
	var words []uint64
	for _, text := range list {
		words = append(words, uint64(s.string(text)))
	}
	return s.words(append(words, 0)...)
}

// address returns the address of a step's table entry.
func address(index int) uint64 { return tableBase + tableHead + uint64(index)*stepSize }

// argument returns the address of a step's argument, to store another step's result there.
func argument(index, arg int) uintptr {
	return uintptr(address(index)) + stepArgs + uintptr(arg)*8
}

// table returns the steps in the form that the program reads.
func (s *stage) table(status int) []byte {
	table := binary.LittleEndian.AppendUint64(nil, uint64(status))
	table = append(table, make([]byte, tableHead-8)...)
	word := func(w uint64) { table = binary.LittleEndian.AppendUint64(table, w) }
	for i, st := range s.steps {
		word(uint64(st.call))
		for _, a := range st.args {
			word(uint64(a))
		}
		word(uint64(st.into))
		word(address(i + 1 + st.skip))
		switch st.then {
		case goOn:
			word(address(i + 1))
		case abandon:
			word(address(s.ends[i]))
		default:
			word(0)
		}
		word(0)
		word(uint64(i))
	}
	return append(table, bytes.Repeat([]byte{0xff}, stepSize)...)
}

var errStageSize = errors.New("the stage is too large")

// image returns the ELF file of a stage that reports on the descriptor status.
func (s *stage) image(status int) ([]byte, error) {
	code := bytes.Clone(unsafe.Slice((*byte)(stageAddress()), codeSize))
	table := s.table(status)
	if len(s.data) > maxSegment || len(table) > maxSegment {
		return nil, errStageSize
	}
	machine := elf.EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = elf.EM_AARCH64
	}
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: codeBase, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 4,
	}
	parts := []struct {
		base  uint64
		flags elf.ProgFlag
		data  []byte
	}{{codeBase, elf.PF_R | elf.PF_X, code}, {dataBase, elf.PF_R | elf.PF_W, s.data},
		{tableBase, elf.PF_R | elf.PF_W, table}}
	programs := []elf.Prog64{{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W)}}
	offset := uint64(segment)
	for _, p := range parts {
		size := uint64(len(p.data))
		programs = append(programs, elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(p.flags), Off: offset, Vaddr: p.base,
			Paddr: p.base, Filesz: size, Memsz: max(size, 1), Align: segment})
		offset += (size + segment - 1) / segment * segment
	}
	var out bytes.Buffer
	_ = binary.Write(&out, binary.LittleEndian, header)
	_ = binary.Write(&out, binary.LittleEndian, programs)
	for i, p := range parts {
		out.Write(make([]byte, programs[i+1].Off-uint64(out.Len())))
		out.Write(p.data)
	}
	return out.Bytes(), nil
}

// file returns the stage as an executable file.
func (s *stage) file(status int) (*os.File, error) {
	image, err := s.image(status)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("unitask-stage", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // MFD_EXEC needs Linux 6.3
		fd, err = unix.MemfdCreate("unitask-stage", unix.MFD_CLOEXEC)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("create a program in memory: %w: this host forbids it (sysctl vm.memfd_noexec)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("create a program in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "unitask-stage")
	if _, err := f.Write(image); err != nil {
		f.Close()
		return nil, fmt.Errorf("create a program in memory: %w", err)
	}
	return f, nil
}

// stepError is a failed step.
type stepError struct {
	step  step
	errno unix.Errno
}

func (e stepError) Error() string { return fmt.Sprintf("%s: %v", e.step.what, e.errno) }
func (e stepError) Unwrap() error { return e.errno }
