// Package contract defines what host and guest must agree on, each fact once: addresses, paths, the letters of
// the wire, limits and statuses. Host and tests import it; the guest's C programs include contract.h, and
// preload.js has the lines it needs: both are written from this file by
//
//	go test ./guest/contract -update
//
// and a test fails if they differ. The package contains only constants.
package contract

// The guest's network; there is nothing else on it.
const (
	GuestIP    = "10.0.2.15"
	GatewayIP  = "10.0.2.2" // the host's end, and the resolver
	ToolsIP    = "10.0.2.3" // the host's HTTP service for calls of tools
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
	OutDir     = "/out"              // the code's results, for the host to collect
	HomeDir    = "/home/user"        // of the user that the code runs as
	WorkDir    = "/work"             // default folder of the code
	UnitaskDir = "/unitask"          // the guest's own files
	LibDir     = "/unitask/lib"      // what the image provides
	ExecFile   = "/unitask/lib/exec" // what PID 1 starts: a path, arguments, environment
	// FoldersFile lists, one a line, folders that PID 1 mounts from the disk as a whole.
	FoldersFile = "/unitask/lib/folders"
	// ContainerFile is in the initramfs of a machine that runs a container's image. It contains the ids that the
	// program runs as: user, group and further groups, as numbers.
	ContainerFile = "/unitask/container"
	Library       = "/unitask/lib/shim.node"
	Preload       = "/unitask/lib/preload.js"
	Typescript    = "/unitask/lib/typescript.js" // makes Node load TypeScript and JSX
	Esbuild       = "/unitask/lib/esbuild"       // the program that converts to JavaScript what Node can't load
	Rehearsal     = "/unitask/lib/rehearsal.js"
	MainLink      = "/unitask/main"        // what the language runs; a link to the code
	Trusted       = "/unitask/ca.pem"      // certificates of a run; empty until the run has some
	Warm          = "/unitask/lib/warm.py" // what Python imports before a snapshot, if an image has it
	Terminal      = "/dev/pts/0"           // of code with a terminal
	SearchPath    = "/usr/local/bin:/usr/bin:/bin"
	Locale        = "C.UTF-8" // of the code, unless it sets another one

	// Reserved are the folders with the guest's own files, separated by colons.
	Reserved = "/dev:/proc:/sys:/usr:/lib:/lib64:/etc:/bin:/unitask:/image:/modules:/init"
	// LayerWithout are the parts of a container's root that no layer contains: they belong to the machine.
	LayerWithout = "/dev:/proc:/sys:/tmp:/run:/out:/unitask:/etc/resolv.conf:/etc/hosts:/etc/hostname"
	// LayerEnd is the last entry of a complete layer; it is not a file.
	LayerEnd = "unitask/end"
	// LayerFile is the name of the artifact with a layer.
	LayerFile = "layer.tar"
	// Writable are the folders that the code may write to, beside its own.
	Writable = "/tmp:/out:/home/user:/dev"
)

// Users on a kernel that has users.
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
	FrameFile      = 'F'
	FrameData      = 'D'
	FrameRelay     = 'L'
	FrameProcess   = 'P'
	FrameTerminal  = 'T'
	FrameSession   = 'V'
	FrameLasting   = 'K'
	FrameLayer     = 'Y'
	FrameHandOut   = 'H'
	FrameLook      = 'W'
	FrameProcesses = 'M'
	FrameContinue  = 'G'
	FrameStart     = 'S'
	FrameStdin     = 'I'
	FrameStdinEnd  = 'Z'
	FrameCollect   = 'A'

	FrameHello        = 'h'
	FrameStarted      = 's'
	FrameStdout       = 'o'
	FrameStderr       = 'e'
	FrameProgram      = 'p'
	FrameLeft         = 'l'
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
	StepPID    = 'p' // it runs: its number in the machine
	StepOut    = 'u' // before a reply or an end: OutDir is not empty
)

// Flags for starting a command of a session.
const (
	ExecTerminal = 1  // on a terminal of its own
	ExecControl  = 2  // with a stream to the host as descriptor 3
	ExecBuiltin  = 4  // one of the session's own file commands
	ExecRoot     = 8  // as the machine's root
	ExecMayRoot  = 16 // it may become root: without no_new_privs
	ExecTellPID  = 32 // StepPID is wanted
)

// Kinds of files, in a file frame and an artifact's.
const (
	KindFile   = 'f'
	KindDir    = 'd'
	KindLink   = 'l'
	KindPipe   = 'p'
	KindSocket = 's'
	KindOther  = 'x'
	KindLarge  = 'b' // a regular file above the remaining limit: its bytes are not sent
)

// Kinds of changes below a watched folder.
const (
	WatchReady    = 'R' // the watch is in place; without a name, like WatchOverflow
	WatchCreate   = 'c'
	WatchWrite    = 'w'
	WatchRemove   = 'r'
	WatchRename   = 'm' // it has another name now, or is elsewhere
	WatchChmod    = 'a'
	WatchOverflow = 'O' // some were lost, or a folder is not watched
)

// MetadataPrefix begins the names of the extended attributes that are a file's metadata.
const MetadataPrefix = "user.e2b."

// Letters that Node's main thread writes to the agent.
const (
	ControlReady     = 'R' // it is up
	ControlStarted   = 'S' // the start was received; the user's code is next
	ControlRehearsed = 'W' // the rehearsal's program has ended
	ControlExit      = 'E' // it exits, with the exit code in the next byte
	ControlWouldExit = 'N' // it would exit, if this were not a rehearsal
	ControlProgram   = 'P' // the compiled code follows: length (4 bytes), bytes; the code waits for ControlContinue
	ControlContinue  = 'G' // sent to it: the host has the program
)

// Limits of the conversation.
const (
	Version      = 1         // of the protocol, in hello
	HeaderSize   = 5         // of a frame: length (4 bytes), type
	MaxFrame     = 1 << 20   // the largest payload in either direction; the agent's buffer has this size
	MaxChunk     = 64 << 10  // of output or standard input in one frame
	MaxProgram   = 32 << 20  // bytes of a compiled program that is handed out
	NonceSize    = 8         // of a seed
	EntropySize  = 64        // of the host's randomness, in a seed and in a start
	MaxRelays    = 256       // ports of the loopback that lead to the host's
	MaxProcess   = 64 << 10  // bytes of a description of a fresh process
	MaxStrings   = 256       // arguments of a fresh process, and variables
	MaxGroups    = 64        // of a container's user
	MaxPath      = 4096      // bytes of a path, its NUL included, as PATH_MAX
	FileHeader   = 24        // of a file frame, before the path
	ArtifactHead = 5         // of an artifact's frame, before the path
	StepHeader   = 9         // of a session's frame: length (4 bytes), type, command (4 bytes)
	MaxStep      = 256 << 10 // bytes of a session's frame, which contains a command's arguments and environment
	MaxCommands  = 64        // of a session at once
	MaxListed    = 4096      // arguments of a command, and variables
	MaxPID       = 1 << 22   // numbers of processes, as the kernel's
	MaxWatches   = 8000      // folders of one watch; the kernel has at least 8192 for a user

	ForwardWindow = 256 << 10 // bytes of a forwarded connection that its client has not read yet
	ForwardUnit   = 32 << 10  // bytes that each byte of control lets a forwarded connection send
)

// Options on the linux guest's kernel command line.
const (
	BootArg    = "unitask.arg="    // an argument of the language, before its others
	BootLazy   = "unitask.lazy"    // the language is started with the run, not before
	BootTrace  = "unitask.trace"   // system calls are written to the console, each in a line that begins with TraceMark
	BootDirect = "unitask.direct=" // a script to run without anything around it
)

// HandOut, in a start, requests the compiled program before it runs.
const HandOut = "hand-out"

// TraceMark begins each line about a system call on the linux guest's console.
const TraceMark = "~"

// EnvFresh is a variable of a process that is started for one run: it reads its start before it loads anything
// else.
const EnvFresh = "UNITASK_FRESH"

// Exit statuses of a machine.
const (
	ExitUnknown   = 125   // and above: the guest's own programs failed, or the kernel
	ExitNoExec    = 126   // the language could not be executed
	ExitSignal    = 128   // plus a signal's number
	DebugExitPort = 0x501 // of QEMU's isa-debug-exit
)

// V8's limit for old objects, in MiB: the machine's memory, minus what the kernel, Node itself and the young
// generation need.
const (
	HeapReserveMB    = 136
	HeapReserveShare = 16 // also minus a sixteenth of the memory
	HeapLeastMB      = 40
)
