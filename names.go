package unitask

import (
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/vmm"
)

// Names of other packages' things that a caller needs, so that it imports this package
// only, and policy and record for what is in a ceiling and a record.

// Kernel names a guest kernel.
type Kernel = image.Kernel

const (
	Linux = image.Linux // Debian's cloud kernel
	Nanos = image.Nanos // the Nanos unikernel: one process, no fork
)

// Arch names an architecture as Go does.
type Arch = image.Arch

const (
	AMD64 = image.AMD64
	ARM64 = image.ARM64
)

// HostArch is the architecture of this machine.
func HostArch() Arch { return image.HostArch() }

// Accel names an accelerator as QEMU does.
type Accel = vmm.Accel

const (
	Auto = vmm.Auto // the best that works, found out by booting
	KVM  = vmm.KVM
	HVF  = vmm.HVF
	TCG  = vmm.TCG // QEMU's own translation: always there, slower
)

// Upstream resolves and dials the hosts that the policy allows.
type Upstream = netstack.Upstream

// Decision is a line of a run's netlog: what the code asked of the network, and the verdict.
type Decision = netstack.Decision

// NetlogSchema is the version of a netlog's lines, which grows when a member changes its
// meaning or goes; new members do not change it.
const NetlogSchema = 1

// netlogLine is a line of the netlog as the record has it: it says whose it is, so that lines
// of many runs can lie in one place.
type netlogLine struct {
	Schema int    `json:"schema"`
	Run    string `json:"run"`
	Caller string `json:"caller,omitempty"`
	Worker string `json:"worker,omitempty"` // of a fleet, that says so
	Decision
}

// Verdicts of decisions.
const (
	Denied  = netstack.Denied
	Allowed = netstack.Allowed
)
