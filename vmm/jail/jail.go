// Package jail starts a program that may turn hostile, QEMU, with as few rights as the host allows, and reports its
// layers and limits. On Linux a stage of our own runs between the fork and the program (stage_linux.go) and makes the
// system calls of a plan (plan_linux.go). The package knows nothing of machines; package vmm calls it.
package jail

import (
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// The layers of a jail, by the names that they have in records.
const (
	User         = "user"              // a user who owns nothing else, or a user namespace
	Groups       = "groups"            // no supplementary groups but KVM's, if that is used
	Capabilities = "capabilities"      // none, and none to be had
	NoPrivileges = "no-new-privileges" // nothing executed gains any
	Filesystem   = "filesystem"        // a root of its own with the program's files and no others
	Network      = "network"           // a network namespace without interfaces
	Processes    = "pid"               // a namespace in which there is no other process
	IPC          = "ipc"
	UTS          = "uts"
	CgroupSpace  = "cgroup"
	Sealed       = "sealed"       // opens nothing once it has started (Process.Seal)
	Landlock     = "landlock"     // opens its program's files and no others
	Seccomp      = "seccomp"      // makes the system calls of a list and no others
	QEMUSeccomp  = "qemu-seccomp" // QEMU's own filter: four groups of system calls
	Sandbox      = "sandbox"      // macOS's: a profile that denies all but its program's files and the hypervisor
)

// The limits of a jail.
const (
	LimitCore      = "core"          // bytes of a core dump
	LimitFiles     = "files"         // open files
	LimitFileSize  = "file-size"     // bytes of a file that it writes
	LimitMemory    = "address-space" // bytes
	LimitLocked    = "locked-memory" // bytes
	LimitQueues    = "message-queue" // bytes
	LimitProcesses = "processes"     // threads included
	// These are a control group's, and hold where one is delegated to us.
	LimitGroupMemory = "memory" // bytes that it has at a time
	LimitTasks       = "tasks"  // threads
	LimitCPU         = "cpu"    // processors' worth of time
	LimitIO          = "io"     // bytes a second that it reads from disks, and that it writes
)

// Hold is one layer or one limit of a jail.
type Hold struct {
	Name   string `json:"name"`
	Holds  bool   `json:"holds"`
	Detail string `json:"detail,omitempty"` // what it is: "uid 65534", "256"
	Why    string `json:"why,omitempty"`    // it does not hold
}

// Report says what holds a process.
type Report struct {
	Layers []Hold `json:"layers"`
	Limits []Hold `json:"limits"`
}

// Missing returns the layers and limits that do not hold.
func (r Report) Missing() []Hold {
	return slices.DeleteFunc(slices.Concat(r.Layers, r.Limits), func(h Hold) bool { return h.Holds })
}

// Lacks returns those of some names that do not hold, or that there are none of.
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

// Weakness names what a broken QEMU could do because layers do not hold; "" if it is held as it should be. Files are
// out of its reach by either of two layers.
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

// String is one line: what holds, and what does not.
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

// Attempt is one attack and what came of it.
type Attempt struct {
	Name    string `json:"name"`
	Through bool   `json:"through"` // all of its calls succeeded, or the host was changed
	Seen    string `json:"seen"`    // what stopped it: "openat: permission denied"
	// Behind is what stopped it where the filter for system calls did not: the other
	// layers, which must be enough by themselves where they hold.
	Behind        string `json:"behind"`
	BehindThrough bool   `json:"behindThrough"`
}

// Program is an executable and all the files that it consists of (Examine).
type Program struct {
	Path        string   `json:"path"`        // absolute, links resolved
	Interpreter string   `json:"interpreter"` // the loader that its header names
	Files       []string `json:"files"`       // both of these, libraries, plugins
	Dirs        []string `json:"dirs"`        // folders that it reads its data from
}

// KVM says how a program comes by KVM.
type KVM int

const (
	NoKVM     KVM = iota
	KVMPassed     // among its descriptors: nothing of the device is in the jail
	KVMOpened     // it opens KVMDevice itself
)

// KVMDevice is how KVM is used.
const KVMDevice = "/dev/kvm"

// Bounds are what a process and its threads may use together, where a control group can hold
// them to it.
type Bounds struct {
	Memory int64   // bytes, without the program's own; there is no swap
	CPUs   float64 // processors' worth of time; 1.5 is one and a half
	IO     int64   // bytes a second, of reads and of writes, for each disk that the program and its files are on
}

// messageDelay bounds how long a program's messages are read after its end. Their pipe ends when nobody has its other
// end: one that was broken out of may have sent that over a socket, where it stays until the socket is closed.
const messageDelay = time.Second

// Spec is what is to be started.
type Spec struct {
	Program Program
	Args    []string // without the program's name
	Env     []string
	Files   []*os.File // the program's descriptors from 3 on
	Reads   []string   // files that it opens by these paths, for macOS's sandbox; Linux's jail gives descriptors
	Stderr  io.Writer
	KVM     KVM
	// Listens: it accepts connections on a socket that it inherits.
	Listens bool
	// Given, if not nil, is what its first openat for reading and writing without O_CLOEXEC
	// returns, whatever it names: a program that opens a file for more than it needs gets one that
	// is good for less. The next such openat ends it. Start duplicates it. Process.Gives says
	// whether this host can.
	Given *os.File
	// Bounds are its control group's.
	Bounds Bounds
	// AddressSpace bounds its memory, in bytes.
	AddressSpace uint64
	// SmallPages gives it no huge pages, so that it has no more memory than it touches. What touches much is slower by it.
	SmallPages bool
	// FileSize bounds the files that it writes, in bytes: those that it is given.
	FileSize uint64
	// Open leaves out all layers that a program could notice: for comparisons.
	Open bool
	// Unfiltered leaves out the filter for system calls, to see what holds behind it.
	Unfiltered bool
	// MaxLandlock is the highest ABI of Landlock that is used, as an older kernel would have it; 0 is the kernel's own.
	MaxLandlock int
}
