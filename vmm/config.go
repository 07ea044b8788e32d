package vmm

import (
	"io"
	"os"
)

// Config describes a machine to start.
type Config struct {
	QEMU     QEMU
	Arch     Arch
	Accel    Accel // not Auto
	MemoryMB int   // of the guest
	// CPUs is the processor time that the machine may use, in processors, rounded up for the number of processors. 0
	// means one processor, and QEMU's own work in addition.
	CPUs float64
	Boot Boot
	// NIC is QEMU's end of the network card's stream socket. Start duplicates it; the caller closes its own copy.
	NIC *os.File
	// Console receives the guest's output on its serial port as it arrives. A failed Write is ignored: the guest must not
	// stall. nil leaves all output in the socket until ReadConsole.
	Console io.Writer
	// Memory, if not nil, is a memfd of MemoryMB that becomes the machine's memory. To make a template, it is shared.
	// With State, it is the template's, and the machine gets private pages of it.
	Memory *os.File
	// MemoryFile means that Memory is a template's own file, open for reading, for a QEMU that MapsFiles.
	MemoryFile bool
	// MemoryShared lets a machine with a State change Memory too; Memory is then the machine's own.
	MemoryShared bool
	// State, if not nil, is a template's device state (SaveState). The machine then starts stopped and without a kernel,
	// and Restore lets it continue.
	State []byte
	// Lasting allows saving the state of the devices without the memory (SaveDevices).
	Lasting bool
	// Q35 chooses q35 instead of amd64's microvm, which has no clock other than the processor's counter.
	Q35 bool
	// Paused leaves the processor stopped until Resume.
	Paused bool
	// Keep makes a guest that shuts down, resets or panics stop the machine instead of ending it. The guest then has no
	// device to make QEMU exit.
	Keep bool
	// GDB, if not nil, is a listening stream socket for gdb's remote protocol. Start duplicates it. A connecting client
	// stops the processor.
	GDB *os.File
	// LogItems selects the items of QEMU's own log (-d's form) that go to Log; "" means none. Writes must not block.
	LogItems string
	Log      io.Writer
	// NoJail leaves out the whole jail, to measure its cost or for a debugger.
	NoJail bool

	kvm string // replaces /dev/kvm in tests, unless ""
}

// fileSize bounds the file that QEMU may write: only a state, into a file that it is given.
func fileSize(cfg Config) uint64 {
	if cfg.Lasting {
		return maxState
	}
	return 0
}

// addressSpaceExtra bounds what QEMU maps in addition to the guest's memory: itself, its libraries, thread stacks and a
// translation buffer.
const addressSpaceExtra = 4 << 30
