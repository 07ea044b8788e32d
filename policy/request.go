// Package policy says what a run may do: what is asked for (Request), and what
// comes of it (Effective, and a Denial for each thing that was cut).
//
// It is pure: it starts nothing and dials nowhere.
package policy

import (
	"fmt"
	"time"
)

// Request is what a caller asks for. Zero values mean the default.
type Request struct {
	Kernel         string  `json:"kernel,omitempty"`         // linux, nanos, or "" for the best there is
	MemoryMB       int     `json:"memoryMb,omitempty"`       // of the machine, MiB
	TimeoutSeconds float64 `json:"timeoutSeconds,omitempty"` // of the code, not of the boot
	OutputBytes    int64   `json:"outputBytes,omitempty"`    // kept of each of stdout and stderr
}

// Effective is what a run gets.
type Effective struct {
	Kernel         string  `json:"kernel"`
	MemoryMB       int     `json:"memoryMb"`
	TimeoutSeconds float64 `json:"timeoutSeconds"`
	OutputBytes    int64   `json:"outputBytes"`
}

// Timeout is the time limit as a duration.
func (e Effective) Timeout() time.Duration {
	return time.Duration(e.TimeoutSeconds * float64(time.Second))
}

// Denial is something that was asked for and not given.
type Denial struct {
	Field     string `json:"field"`
	Requested string `json:"requested"`
	Reason    string `json:"reason"`
	Rule      string `json:"rule,omitempty"` // what in the ceiling said so
}

// Defaults.
const (
	DefaultMemoryMB       = 512
	DefaultTimeoutSeconds = 60
	DefaultOutputBytes    = 16 << 20
)

// Bounds on what can be asked for at all.
const (
	MinMemoryMB       = 128 // Node needs 96 MiB
	MaxMemoryMB       = 64 << 10
	MaxTimeoutSeconds = 24 * 60 * 60
	MaxOutputBytes    = 1 << 30
)

// FieldError says that a field of a request can't be what it is.
type FieldError struct {
	Field  string // JSON name
	Value  string
	Reason string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s %s: %s", e.Field, e.Value, e.Reason) }

// Resolve checks a request and fills in the defaults.
func Resolve(r Request) (Effective, []Denial, error) {
	e := Effective(r)
	if e.MemoryMB == 0 {
		e.MemoryMB = DefaultMemoryMB
	}
	if e.TimeoutSeconds == 0 {
		e.TimeoutSeconds = DefaultTimeoutSeconds
	}
	if e.OutputBytes == 0 {
		e.OutputBytes = DefaultOutputBytes
	}
	bad := func(field string, value any, format string, args ...any) (Effective, []Denial, error) {
		return Effective{}, nil, &FieldError{field, fmt.Sprint(value), fmt.Sprintf(format, args...)}
	}
	switch {
	case e.Kernel != "" && e.Kernel != "linux" && e.Kernel != "nanos":
		return bad("kernel", fmt.Sprintf("%q", r.Kernel), "use linux or nanos")
	case e.MemoryMB < MinMemoryMB || e.MemoryMB > MaxMemoryMB:
		return bad("memoryMb", e.MemoryMB, "must be from %d to %d", MinMemoryMB, MaxMemoryMB)
	case !(e.TimeoutSeconds > 0 && e.TimeoutSeconds <= MaxTimeoutSeconds):
		return bad("timeoutSeconds", e.TimeoutSeconds, "must be more than 0 and at most %d", MaxTimeoutSeconds)
	case e.OutputBytes < 0 || e.OutputBytes > MaxOutputBytes:
		return bad("outputBytes", e.OutputBytes, "must be from 1 to %d", MaxOutputBytes)
	}
	return e, nil, nil
}
