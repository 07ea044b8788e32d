package vmm

import (
	"io"
	"os"
)

// Config is a machine to be started.
type Config struct {
	QEMU     QEMU
	Arch     Arch
	Accel    Accel // not Auto
	MemoryMB int   // of the guest
	// CPUs is the processor time that the machine may use, in processors; it has as many as are
	// needed for that. 0 is one processor, and QEMU's own work beside it.
	CPUs float64
	Boot Boot
	// NIC is QEMU's end of the network card's stream socket. Start duplicates
	// it; the caller closes its own copy.
	NIC *os.File
	// Console receives what the guest writes to its serial port, as it comes. A
	// Write that fails is ignored: the guest must not stall. nil leaves it all in
	// the socket until ReadConsole.
	Console io.Writer
	// Memory, if not nil, is a memfd of MemoryMB that becomes the machine's
	// memory: shared, to make a template; or, with State, the template's, of
	// which the machine gets private pages.
	Memory *os.File
	// MemoryFile: Memory is a template's own file, open for reading, for a QEMU that MapsFiles.
	MemoryFile bool
	// MemoryShared has a machine with a State change Memory too, which is its own.
	MemoryShared bool
	// State, if not nil, is a template's device state (SaveState); the machine then starts stopped and without a kernel,
	// and Restore lets it continue.
	State []byte
	// Lasting: the state of its devices can be had without its memory (SaveDevices).
	Lasting bool
	// Q35 is a q35 in the place of amd64's microvm, which has no clock beside the processor's counter.
	Q35 bool
	// Paused leaves the processor stopped until Resume.
	Paused bool
	// Keep has a guest that shuts down, resets or panics stop, not end, the machine; it
	// has no device to end QEMU with.
	Keep bool
	// GDB, if not nil, is a listening stream socket for gdb's remote protocol. Start
	// duplicates it. A client that connects stops the processor.
	GDB *os.File
	// LogItems are what of QEMU's own log goes to Log (-d's form); "" is nothing. Writes
	// must not block.
	LogItems string
	Log      io.Writer
	// NoJail leaves out all of the jail: to find out what it costs, or for a debugger.
	NoJail bool

	kvm string // in place of /dev/kvm, in tests; "" is that
}

// fileSize returns what QEMU may write into a file: a state, into one that it is given for it.
func fileSize(cfg Config) uint64 {
	if cfg.Lasting {
		return maxState
	}
	return 0
}

// addressSpaceExtra is what QEMU maps beside the guest's memory: itself, its
// libraries, thread stacks and a translation buffer.
const addressSpaceExtra = 4 << 30
