// Package contract is what host and guest must agree on, each fact once: addresses,
// paths, the letters of the wire, limits and statuses. Host and tests import it; the
// guest's C programs include contract.h, and preload.js has the lines it needs: both
// are written from this file by
//
//	go test ./guest/contract -update
//
// and a test fails where they differ. The package holds constants and nothing else.
package contract

// The network that a guest has, and nothing else on it.
const (
	GuestIP    = "10.0.2.15"
	GatewayIP  = "10.0.2.2" // the host's end, and the resolver
	Netmask    = "255.255.255.0"
	GuestMAC   = "52:54:00:75:74:01"
	GatewayMAC = "52:54:00:75:74:02"
	Hostname   = "unitask"
	AgentPort  = 7001 // TCP for the conversation, UDP for bell and seed
)

// Names of kernels, in the agent's hello.
const (
	KernelLinux = "linux"
	KernelNanos = "nanos"
)

// Paths in the guest.
const (
	OutDir     = "/out"              // where the code leaves what is to come back
	HomeDir    = "/home/user"        // of the user that the code runs as
	WorkDir    = "/work"             // where code runs that asks for no other place
	UnitaskDir = "/unitask"          // the guest's own
	LibDir     = "/unitask/lib"      // what the image brings
	ExecFile   = "/unitask/lib/exec" // what PID 1 starts: a path, arguments, environment
	// FoldersFile names, a line each, folders that PID 1 mounts from the disk as a whole.
	FoldersFile = "/unitask/lib/folders"
	// ContainerFile is in the initramfs of a machine that runs a container's image: who its program runs
	// as, user, group and further groups, as numbers.
	ContainerFile = "/unitask/container"
	Library       = "/unitask/lib/shim.node"
	Preload       = "/unitask/lib/preload.js"
	Typescript    = "/unitask/lib/typescript.js" // what has Node load TypeScript and JSX
	Esbuild       = "/unitask/lib/esbuild"       // the program that makes JavaScript of what Node can't
	Rehearsal     = "/unitask/lib/rehearsal.js"
	MainLink      = "/unitask/main"        // what the language runs; its target is the code
	Trusted       = "/unitask/ca.pem"      // certificates of a run; empty until it brings some
	Warm          = "/unitask/lib/warm.py" // what Python imports before a snapshot, where an image has it
	Terminal      = "/dev/pts/0"           // of code that has one
	SearchPath    = "/usr/local/bin:/usr/bin:/bin"
	Locale        = "C.UTF-8" // of the code, where it asks for none

	// Reserved are the folders that hold the guest's own files, a colon between two.
	Reserved = "/dev:/proc:/sys:/usr:/lib:/lib64:/etc:/bin:/unitask:/image:/modules:/init"
	// LayerWithout are those of a container's root that no layer has: they are the machine's.
	LayerWithout = "/dev:/proc:/sys:/tmp:/run:/out:/unitask:/etc/resolv.conf:/etc/hosts:/etc/hostname"
	// LayerEnd is the last entry of a layer that is whole, and no file.
	LayerEnd = "unitask/end"
	// LayerFile is the artifact that a layer is.
	LayerFile = "layer.tar"
	// Writable are the folders that the code may write to, beside its own.
	Writable = "/tmp:/out:/home/user:/dev"
)

// Who runs what on a kernel that has users.
const (
	UserID   = 1000  // the code
	NobodyID = 65534 // the relay
)

// Datagrams, by their first four bytes. See ../frame.go.
const (
	WordBell      = "UTD1"
	WordSeed      = "UTS1"
	WordSeeded    = "UTA1"
	WordRehearse  = "UTW1"
	WordForgotten = "UTX1"
)

// Frames of the conversation, by their type. See ../frame.go.
const (
	FrameFile     = 'F'
	FrameData     = 'D'
	FrameRelay    = 'L'
	FrameProcess  = 'P'
	FrameTerminal = 'T'
	FrameSession  = 'V'
	FrameLasting  = 'K'
	FrameLayer    = 'Y'
	FrameHandOut  = 'H'
	FrameContinue = 'G'
	FrameStart    = 'S'
	FrameStdin    = 'I'
	FrameStdinEnd = 'Z'
	FrameCollect  = 'A'

	FrameHello        = 'h'
	FrameStarted      = 's'
	FrameStdout       = 'o'
	FrameStderr       = 'e'
	FrameProgram      = 'p'
	FrameExit         = 'x'
	FrameRehearsed    = 'w'
	FrameArtifact     = 'a'
	FrameArtifactData = 'd'
	FrameArtifactsEnd = 'z'
)

// Frames of a session, which its program and the host exchange on the program's standard
// streams. See ../session/session.go.
const (
	StepExec     = 'X'
	StepInput    = 'I'
	StepInputEnd = 'Z'
	StepControl  = 'C'
	StepSignal   = 'K'
	StepResize   = 'T'
	StepHold     = 'H'
	StepContinue = 'G'

	StepStdout = 'o'
	StepStderr = 'e'
	StepReply  = 'c'
	StepTaken  = 'a'
	StepFailed = 'f'
	StepEnd    = 'x'
	StepHeld   = 'h'
	StepOut    = 'u' // before a reply or an end: there is something in OutDir
)

// How a command of a session is started.
const (
	ExecTerminal = 1 // on a terminal of its own
	ExecControl  = 2 // with a stream to the host as descriptor 3
	ExecBuiltin  = 4 // it is one of the session's own, about files
)

// Kinds of files, in a file frame and an artifact's.
const (
	KindFile   = 'f'
	KindDir    = 'd'
	KindLink   = 'l'
	KindPipe   = 'p'
	KindSocket = 's'
	KindOther  = 'x'
	KindLarge  = 'b' // a regular file of more bytes than may still come: its bytes are not sent
)

// Letters that Node's main thread writes to the agent.
const (
	ControlReady     = 'R' // it is up
	ControlStarted   = 'S' // the start was taken; the user's code is next
	ControlRehearsed = 'W' // the rehearsal's program has ended
	ControlExit      = 'E' // it ends, with the exit code in the next byte
	ControlWouldExit = 'N' // it would, if this were no rehearsal
	ControlProgram   = 'P' // the compiled code follows: its length (4 bytes), and it; the code waits for ControlContinue
	ControlContinue  = 'G' // to it: the host has that
)

// Limits of the conversation.
const (
	Version      = 1         // of the protocol, in hello
	HeaderSize   = 5         // of a frame: length (4 bytes), type
	MaxFrame     = 1 << 20   // the largest payload in either direction; the agent has a buffer of that size
	MaxChunk     = 64 << 10  // of output or standard input in one frame
	MaxProgram   = 32 << 20  // bytes of a compiled program that is handed out
	PlaceSize    = 4 << 20   // bytes of a place (PlaceMark)
	NonceSize    = 8         // of a seed
	EntropySize  = 64        // of the host's randomness, in a seed and in a start
	MaxRelays    = 256       // ports of the loopback that lead to the host's
	MaxProcess   = 64 << 10  // bytes that say how a fresh process is started
	MaxStrings   = 256       // arguments of one, and variables
	MaxGroups    = 64        // of a container's user
	MaxPath      = 4096      // bytes of a path, its NUL included, as PATH_MAX
	FileHeader   = 24        // of a file frame, before the path
	ArtifactHead = 5         // of an artifact's frame, before the path
	StepHeader   = 9         // of a session's frame: length (4 bytes), type, command (4 bytes)
	MaxStep      = 256 << 10 // bytes of a session's frame, which holds a command's arguments and environment
	MaxCommands  = 64        // of a session at once
	MaxListed    = 4096      // arguments of a command, and variables

	ForwardWindow = 256 << 10 // bytes of a forwarded connection that its client has not taken
	ForwardUnit   = 32 << 10  // bytes that each byte of control lets a forwarded connection send
)

// What the host puts on the linux guest's kernel command line.
const (
	BootArg    = "unitask.arg="    // an argument of the language, before its others
	BootLazy   = "unitask.lazy"    // it is started by the start, not before
	BootTrace  = "unitask.trace"   // its system calls go to the console, each in a line that begins with TraceMark
	BootDirect = "unitask.direct=" // a script to run with nothing around it
)

// HandOut, in a start, has the program that the code is compiled to handed out before it runs.
const HandOut = "hand-out"

// PlaceMark begins each page of a place, a file that a program waits with when a snapshot is taken, so that clones
// can have something in it from their beginning; behind it is the page's number, 32 bits, little-endian, and nothing
// else. As it is written here it is in no guest's memory: each letter is the one before the one meant.
const PlaceMark = "tmhs`rj,ok`bd"

// TraceMark begins each line of the linux guest's console that tells of a system call.
const TraceMark = "~"

// EnvFresh is a variable of a process that is started for one run: it takes its start
// before it loads anything else.
const EnvFresh = "UNITASK_FRESH"

// How a machine ends.
const (
	ExitUnknown   = 125   // and above: the guest's own programs failed, or the kernel
	ExitNoExec    = 126   // the language could not be executed
	ExitSignal    = 128   // and a signal's number
	DebugExitPort = 0x501 // of QEMU's isa-debug-exit
)

// V8's limit for old objects, in MiB: the machine's memory, less what the kernel,
// Node itself and the young generation need.
const (
	HeapReserveMB    = 136
	HeapReserveShare = 16 // a sixteenth of the memory, too
	HeapLeastMB      = 40
)
