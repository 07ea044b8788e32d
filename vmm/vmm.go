// Package vmm runs one QEMU machine. It has the machine's command line (args.go, a pure function), and its process and
// limits (machine.go, package jail). It also has the control channel (qmp.go) and chooses the accelerator (accel.go).
//
// A machine has one disk or more, one network card and one serial console. The card's other end is a stream socket
// that the caller holds. The package never gives a machine any other way out, and knows nothing about what runs
// inside.
package vmm

import (
	"errors"
	"fmt"
	"strings"
)

// Arch names a guest architecture in Go's form: amd64 or arm64.
type Arch string

const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// ErrNoQEMU means that no QEMU for the architecture was found.
var ErrNoQEMU = errors.New("QEMU is not installed")

// ErrOldQEMU means that the installed QEMU lacks a required feature.
var ErrOldQEMU = errors.New("QEMU is too old")

// ExitError means that QEMU exited unexpectedly.
type ExitError struct {
	Status string // in the form of os.ProcessState: "exit status 1", "signal: aborted"
	Stderr string // the last kilobytes of QEMU's messages
}

func (e *ExitError) Error() string {
	if e.Stderr == "" {
		return fmt.Sprintf("QEMU ended: %s", e.Status)
	}
	return fmt.Sprintf("QEMU ended: %s: %s", e.Status, lastLine(e.Stderr))
}

// Killed reports whether somebody killed QEMU. It is false if its jail did, or the kernel because of its control
// group's memory.
func (e *ExitError) Killed() bool { return e.Status == killed }

const killed = "signal: killed"

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return s
}
