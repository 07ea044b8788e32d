package run

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

// HostError is a failure of unitask or of the host, not of the code.
type HostError struct {
	Op  string // the operation
	Err error
}

func (e *HostError) Error() string { return e.Op + ": " + e.Err.Error() }

func (e *HostError) Unwrap() error { return e.Err }

// GuestError means that the machine ended without reporting the code's end: the kernel stopped, or the guest broke the
// protocol.
type GuestError = machine.GuestError

// LostError means that the worker that ran the code was lost. What the code did before is unknown. It may have acted on
// other systems, so it was not run again.
type LostError struct{ Reason string }

func (e *LostError) Error() string { return "lost: " + e.Reason }

// JailError means that required layers or limits of QEMU's jail do not hold. The run has not started.
type JailError struct{ Lacks []vmm.Layer }

func (e *JailError) Error() string {
	var parts []string
	for _, l := range e.Lacks {
		parts = append(parts, l.Name+" ("+l.Why+")")
	}
	return "QEMU's jail lacks what is required of it: " + strings.Join(parts, ", ") +
		"; `unitask doctor` says how to fix it"
}

// Exit codes of a run, as `unitask run` returns them. They are those of timeout(1) and the shell.
const (
	ExitUsage       = 2
	ExitUndelivered = 123 // the code ended with 0, but not all of /out was delivered
	ExitTimeout     = 124
	ExitHost        = 125 // unitask, the host or the machine failed
	ExitCancelled   = 130
	ExitOOM         = 137
	ExitSignal      = 128 // plus the signal's number
)

// ExitCode returns the exit code for the results of Run.
func ExitCode(res *Result, err error) int {
	var field *policy.FieldError
	switch {
	case err == nil && res != nil:
		return res.ExitCode
	case errors.As(err, &field):
		return ExitUsage
	case res != nil && res.Outcome == OutcomeCancelled, errors.Is(err, context.Canceled):
		return ExitCancelled
	}
	return ExitHost
}

// SessionError means that a session has ended, and why.
type SessionError struct {
	ID  string
	Why string
}

func (e *SessionError) Error() string {
	return fmt.Sprintf("session %s has ended: %s", e.ID, e.Why)
}

// BusyError means that there is currently no room.
type BusyError struct {
	What  string
	After time.Duration // when to try again
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("busy: %s; try again in %d ms", e.What, e.After.Milliseconds())
}
