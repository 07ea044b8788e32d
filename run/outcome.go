package run

import (
	"fmt"
	"slices"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/record"
)

// Outcome is how a run ended, apart from its exit code.
type Outcome string

const (
	OutcomeExited   Outcome = "exited"   // by itself; ExitCode is that of the code
	OutcomeSignaled Outcome = "signaled" // by a signal; ExitCode is 128 plus its number
	OutcomeTimeout  Outcome = "timeout"  // ExitCode 124
	OutcomeOOM      Outcome = "oom"      // ExitCode 137
	// OutcomeUndelivered means that the code ended with 0, but a file of /out was not delivered. A limit applied, or a
	// file of the same name prevented its copy. ExitCode 123.
	OutcomeUndelivered Outcome = "undelivered"
	OutcomeCancelled   Outcome = "cancelled" // the caller stopped it; ExitCode 130
	OutcomeCrashed     Outcome = "crashed"   // the machine died or broke the protocol; ExitCode 125
	OutcomeFailed      Outcome = "failed"    // unitask or the host failed; ExitCode 125
	OutcomeBusy        Outcome = "busy"      // a fleet's queue is full, and nothing ran (BusyError); ExitCode 125
	OutcomeLost        Outcome = "lost"      // its worker was lost, and it must not be run twice (LostError); ExitCode 125
)

// NoteUndelivered sets the outcome to OutcomeUndelivered if the code ended with 0 and a wanted file of /out was
// not returned or not copied.
func (r *Result) NoteUndelivered() {
	var missed []record.Refusal
	for _, one := range slices.Concat(r.ArtifactsRefused, r.ArtifactsLeft) {
		if one.Missed {
			missed = append(missed, one)
		}
	}
	if len(missed) == 0 || r.Outcome != OutcomeExited || r.ExitCode != 0 {
		return
	}
	r.Outcome, r.ExitCode = OutcomeUndelivered, ExitUndelivered
	r.Error = fmt.Sprintf("the code ended with 0, but not all that it left in /out was delivered: %s: %s",
		bounded.Text(missed[0].Path, 300), bounded.Text(missed[0].Reason, 1200))
	if more := len(missed) - 1; more > 0 {
		r.Error += fmt.Sprintf(", and %d more", more)
	}
}

// Limits returns the limits that a run has reached, by the names of their fields in a request.
func (r *Result) Limits() (list []string) {
	for _, bound := range []struct {
		reached bool
		name    string
	}{{r.TimedOut, "timeoutMs"}, {r.OOM, "memoryMb"}, {r.Truncated, "outputBytes"},
		{r.ProcessesRefused > 0, "maxProcesses"},
		{len(r.ArtifactsRefused) > 0, "maxArtifactBytes"}} {
		if bound.reached {
			list = append(list, bound.name)
		}
	}
	return list
}

// Values of Result.Compiled: the program was compiled before, or is kept for the next run.
const (
	CompiledCached = "cached"
	CompiledKept   = "kept"
)
