package vmm

import (
	"fmt"
	"strings"
)

// Exit is how QEMU ended.
type Exit struct {
	Code   int    `json:"code"`   // exit status; -1 when Signal is set
	Signal string `json:"signal"` // "killed", …; "" for an ordinary exit
	// Denied is the system call for which its jail ended it: "connect". A QEMU that was
	// broken out of makes such a call, or one whose calls we do not know yet.
	Denied string `json:"denied,omitempty"`
	// OutOfMemory: the kernel ended it because it took more memory than a machine of its kind may.
	OutOfMemory bool   `json:"outOfMemory,omitempty"`
	Stderr      string `json:"stderr"` // QEMU's own messages, the last kilobytes
	// Guest is the status that the guest wrote to the debug-exit device, or -1.
	// It has 7 bits.
	Guest int `json:"guest"`
}

// complaint returns what QEMU said without its warnings, which end no machine.
func complaint(stderr string) string {
	var out strings.Builder
	for line := range strings.Lines(stderr) {
		if !strings.Contains(line, ": warning: ") {
			out.WriteString(line)
		}
	}
	return strings.TrimSpace(out.String())
}

// Err turns the end of a process that should still run into an error.
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
