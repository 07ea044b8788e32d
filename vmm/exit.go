package vmm

import (
	"fmt"
	"strings"
)

// Exit describes how QEMU exited.
type Exit struct {
	Code   int    `json:"code"`   // exit code; -1 if Signal is set
	Signal string `json:"signal"` // "killed", …; "" for an ordinary exit
	// Denied is the system call for which the jail killed QEMU: "connect". Such a call means that the guest broke out of
	// QEMU, or that the list lacks a call of this QEMU.
	Denied string `json:"denied,omitempty"`
	// OutOfMemory means that the kernel killed QEMU because it exceeded the memory limit for machines of its kind.
	OutOfMemory bool   `json:"outOfMemory,omitempty"`
	Stderr      string `json:"stderr"` // the last kilobytes of QEMU's own messages
	// Guest is the status that the guest wrote to the debug-exit device, or -1. It has 7 bits.
	Guest int `json:"guest"`
}

// complaint returns QEMU's messages without warnings, which end no machine.
func complaint(stderr string) string {
	var out strings.Builder
	for line := range strings.Lines(stderr) {
		if !strings.Contains(line, ": warning: ") {
			out.WriteString(line)
		}
	}
	return strings.TrimSpace(out.String())
}

// Err returns the error for a process that should still be running.
func (e Exit) Err() error {
	status := fmt.Sprintf("exit status %d", e.Code)
	switch {
	case e.OutOfMemory:
		status = "it took more memory than its control group may have"
	case e.Denied != "":
		status = "its jail ended it for the system call " + e.Denied
	case e.Signal != "":
		status = "signal: " + e.Signal
	}
	return &ExitError{Status: status, Stderr: e.Stderr}
}
