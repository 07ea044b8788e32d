// Package jail starts a program that may turn hostile, QEMU, with as few rights as the host allows, and reports its
// layers and limits. On Linux, a stage runs between the fork and the program (stage_linux.go) and makes the system
// calls of a plan (plan_linux.go). The package knows nothing about machines; package vmm calls it.
package jail

import (
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// The layers of a jail, by their names in records.
const (
	User         = "user"              // a user who owns nothing else, or a user namespace
	Groups       = "groups"            // no supplementary groups except KVM's, if KVM is used
	Capabilities = "capabilities"      // none, and no way to gain any
	NoPrivileges = "no-new-privileges" // nothing executed gains any
	Filesystem   = "filesystem"        // a separate root with the program's files only
	Network      = "network"           // a network namespace without interfaces
	Processes    = "pid"               // a namespace without other processes
	IPC          = "ipc"
	UTS          = "uts"
	CgroupSpace  = "cgroup"
	Sealed       = "sealed"       // opens nothing once it has started (Process.Seal)
	Landlock     = "landlock"     // opens only its program's files
	Seccomp      = "seccomp"      // makes only the listed system calls
	QEMUSeccomp  = "qemu-seccomp" // QEMU's own filter: four groups of system calls
	Sandbox      = "sandbox"      // macOS's: a profile that denies all except its program's files and the hypervisor
)

// The limits of a jail.
const (
	LimitCore      = "core"          // bytes of a core dump
	LimitFiles     = "files"         // open files
	LimitFileSize  = "file-size"     // bytes of a file that the program writes
	LimitMemory    = "address-space" // bytes
	LimitLocked    = "locked-memory" // bytes
	LimitQueues    = "message-queue" // bytes
	LimitProcesses = "processes"     // threads included
	// These are a control group's, and hold only if a group is delegated to this process.
	LimitGroupMemory = "memory" // bytes in use at a time
	LimitTasks       = "tasks"  // threads
	LimitCPU         = "cpu"    // processors' worth of time
	LimitIO          = "io"     // bytes a second read from disks, and bytes a second written
)

// Hold is one layer or one limit of a jail.
type Hold struct {
	Name   string `json:"name"`
	Holds  bool   `json:"holds"`
	Detail string `json:"detail,omitempty"` // the value: "uid 65534", "256"
	Why    string `json:"why,omitempty"`    // the reason that it does not hold
}

// Report lists the layers and limits that confine a process.
type Report struct {
	Layers []Hold `json:"layers"`
	Limits []Hold `json:"limits"`
}

// Missing returns the layers and limits that do not hold.
func (r Report) Missing() []Hold {
	return slices.DeleteFunc(slices.Concat(r.Layers, r.Limits), func(h Hold) bool { return h.Holds })
}

// Lacks returns those of the named layers and limits that do not hold or do not exist.
func (r Report) Lacks(names []string) []Hold {
	var out []Hold
	all := slices.Concat(r.Layers, r.Limits)
	for _, name := range names {
		i := slices.IndexFunc(all, func(h Hold) bool { return h.Name == name })
		switch {
		case i < 0:
			out = append(out, Hold{Name: name, Why: "there is none"})
		case !all[i].Holds:
			out = append(out, all[i])
		}
	}
	return out
}

// Weakness names what a broken QEMU could do because layers do not hold, or returns "". Either of two layers is enough
// to keep files out of its reach.
func (r Report) Weakness() string {
	var weak []string
	for _, h := range r.Lacks([]string{Network, Processes, Capabilities, NoPrivileges}) {
		weak = append(weak, h.Name+" ("+h.Why+")")
	}
	if files := r.Lacks([]string{Filesystem, Landlock}); len(files) == 2 {
		weak = append(weak, files[0].Name+" ("+files[0].Why+")")
	}
	return strings.Join(weak, ", ")
}

// String returns one line with the active and the inactive layers and limits.
func (r Report) String() string {
	list := func(all []Hold, holds bool) (names []string) {
		for _, h := range all {
			if h.Holds == holds {
				names = append(names, h.Name)
			}
		}
		return names
	}
	var parts []string
	for _, group := range []struct {
		label string
		names []string
	}{{"", list(r.Layers, true)}, {"limits: ", list(r.Limits, true)},
		{"NOT HELD: ", append(list(r.Layers, false), list(r.Limits, false)...)}} {
		if len(group.names) > 0 {
			parts = append(parts, group.label+strings.Join(group.names, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// Attempt is one attack and its outcome.
type Attempt struct {
	Name    string `json:"name"`
	Through bool   `json:"through"` // all of its calls succeeded, or the host was changed
	Seen    string `json:"seen"`    // what stopped it: "openat: permission denied"
	// Behind is what stopped the attempt when the system call filter was left out: the other layers, which must be
	// sufficient without the filter.
	Behind        string `json:"behind"`
	BehindThrough bool   `json:"behindThrough"`
}

// Program is an executable with all the files that it needs (Examine).
type Program struct {
	Path        string   `json:"path"`        // absolute, links resolved
	Interpreter string   `json:"interpreter"` // the loader named in its header
	Files       []string `json:"files"`       // both of these, libraries, plugins
	Dirs        []string `json:"dirs"`        // folders with the program's data
}

// KVM tells how a program gets access to KVM.
type KVM int

const (
	NoKVM     KVM = iota
	KVMPassed     // as a descriptor: the jail does not contain the device
	KVMOpened     // it opens KVMDevice itself
)

// KVMDevice is the device file of KVM.
const KVMDevice = "/dev/kvm"

// Bounds are what a process and its threads may use together, if a control group can enforce them.
type Bounds struct {
	Memory int64   // bytes, without the program's own; there is no swap
	CPUs   float64 // processors' worth of time; 1.5 is one and a half
	IO     int64   // bytes a second, of reads and of writes, for each disk with the program or its files
}

// messageDelay bounds how long a program's messages are read after its end. Their pipe stays open while anybody has its
// other end. A broken program may have sent that end over a socket, where it stays until the socket is closed.
const messageDelay = time.Second

// Spec describes the program to start and its jail.
type Spec struct {
	Program Program
	Args    []string // without the program's name
	Env     []string
	Files   []*os.File // the program's descriptors from 3 on
	Reads   []string   // files that it opens by these paths, for macOS's sandbox; Linux's jail passes descriptors
	Stderr  io.Writer
	KVM     KVM
	// Listens means that the program accepts connections on an inherited socket.
	Listens bool
	// Given, if not nil, is the result of the program's first openat for reading and writing without O_CLOEXEC,
	// whatever file it names. So a program that asks for more access than it needs gets a descriptor with less. The
	// next such openat kills the program. Start duplicates Given. Process.Gives reports whether this host supports
	// it.
	Given *os.File
	// Bounds are enforced by the control group.
	Bounds Bounds
	// AddressSpace bounds its memory, in bytes.
	AddressSpace uint64
	// SmallPages disables huge pages, so that the program only has memory that it touches. Programs that touch much
	// memory become slower.
	SmallPages bool
	// FileSize bounds the size in bytes of the files that the program writes, which are passed to it.
	FileSize uint64
	// Open leaves out all layers that a program could notice, for comparisons.
	Open bool
	// Unfiltered leaves out the system call filter, to test the other layers.
	Unfiltered bool
	// MaxLandlock is the highest ABI of Landlock to use, to imitate an older kernel. 0 means the kernel's own.
	MaxLandlock int
}
