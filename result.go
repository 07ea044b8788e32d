package unitask

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Outcome is how a run ended, apart from its exit code.
type Outcome string

const (
	OutcomeExited   Outcome = "exited"   // by itself; ExitCode is its own
	OutcomeSignaled Outcome = "signaled" // by a signal; ExitCode is 128 plus its number
	OutcomeTimeout  Outcome = "timeout"  // ExitCode 124
	OutcomeOOM      Outcome = "oom"      // ExitCode 137
	// OutcomeUndelivered is that the code ended with 0, but a file of /out did not come back, for a limit, or was not
	// copied, for a file of its name; ExitCode 123.
	OutcomeUndelivered Outcome = "undelivered"
	OutcomeCancelled   Outcome = "cancelled" // the caller stopped it; ExitCode 130
	OutcomeCrashed     Outcome = "crashed"   // the machine died or broke the protocol; ExitCode 125
	OutcomeFailed      Outcome = "failed"    // unitask or the host failed; ExitCode 125
	OutcomeBusy        Outcome = "busy"      // a fleet's queue is full, and nothing ran (BusyError); ExitCode 125
	OutcomeLost        Outcome = "lost"      // its worker was lost, and it may not be run twice (LostError); ExitCode 125
)

// Result is the outcome of a run. Its JSON form is what `unitask run --json` prints, and what
// the record and MCP hold.
type Result struct {
	RunID     string
	Outcome   Outcome
	ExitCode  int
	Stdout    []byte // empty when IO.Stdout was given
	Stderr    []byte
	Truncated bool // more was printed than OutputBytes
	TimedOut  bool
	OOM       bool
	Error     string // one sentence for every outcome but exited
	// Hint says, where the code did not end with 0, what it seems to have lacked (a module,
	// something that its kernel does not have) and what gives it.
	Hint string
	// Value is the last expression's, of a session's step, and Session its id.
	Value, Session string
	// Retried says why the run was made again on linux (Request.KernelRetry), "" if it was not.
	Retried  string
	Duration Durations

	Kernel      Kernel
	Accelerator Accel
	// WhySlow says, where Accelerator is TCG and the choice was unitask's, why it is not hardware.
	WhySlow  string
	Cloned   bool // the machine was cloned from a template; else booted
	Pooled   bool // and the clone stood ready
	MemoryMB int
	Policy   Policy
	// Compiled says, of a language whose code is compiled, that the program came from the store of those that were compiled
	// before (CompiledCached), or was put there (CompiledKept); else it is "".
	Compiled string

	// Artifacts are the files that the code left in /out; they are in the record
	// (record.Store.OpenArtifact). ArtifactsRefused is what did not come back: a
	// hundred by name, and how many more. ArtifactsLeft are those that were not copied to IO.Out.
	Artifacts        []record.Artifact
	ArtifactsRefused []record.Refusal
	ArtifactsLeft    []record.Refusal

	// Packages are those that Request.Packages brought, with all that these need.
	Packages []InstalledPackage
	// Approvals are the questions that were asked (Request.Ask), and what became of them.
	Approvals []Approval
	// PolicyChanges are those that its owner made while it was under way.
	PolicyChanges []PolicyChange
	// RetryAfter says, where the outcome is busy, when to try again.
	RetryAfter time.Duration

	// Redacted are the fields of the request that hold a secret ("args[0]", "env.NAME",
	// "code"): the record has a mark in its place, and can't be run again.
	Redacted []string
}

// Durations are the times of a run's phases; in JSON, milliseconds.
type Durations struct {
	Total   time.Duration // from the request to the end
	Boot    time.Duration // until the guest waited for its code
	Connect time.Duration // until the code was in and started
	Run     time.Duration // the code itself
}

// DurationsJSON is the wire form of Durations, in milliseconds.
type DurationsJSON struct {
	Total   int64 `json:"total"`
	Boot    int64 `json:"boot"`
	Connect int64 `json:"connect"`
	Run     int64 `json:"run"`
}

func (d Durations) wire() DurationsJSON {
	return DurationsJSON{d.Total.Milliseconds(), d.Boot.Milliseconds(), d.Connect.Milliseconds(), d.Run.Milliseconds()}
}

func (j DurationsJSON) durations() Durations {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	return Durations{ms(j.Total), ms(j.Boot), ms(j.Connect), ms(j.Run)}
}

// Policy is what a run was granted and what it was denied.
type Policy struct {
	Effective policy.Effective `json:"effective"`
	Denials   []policy.Denial  `json:"denials"`
	Ceiling   string           `json:"ceiling,omitempty"` // the file that it was cut to
}

// ResultJSON is the wire form of a Result. Streams that are not UTF-8 come as base64.
type ResultJSON struct {
	RunID        string        `json:"runId"`
	Outcome      Outcome       `json:"outcome"`
	ExitCode     int           `json:"exitCode"`
	Stdout       string        `json:"stdout"`
	Stderr       string        `json:"stderr"`
	StdoutBase64 string        `json:"stdoutBase64,omitempty"`
	StderrBase64 string        `json:"stderrBase64,omitempty"`
	Truncated    bool          `json:"truncated"`
	TimedOut     bool          `json:"timedOut"`
	OOM          bool          `json:"oom"`
	Error        string        `json:"error,omitempty"`
	Hint         string        `json:"hint,omitempty"`
	Value        string        `json:"value,omitempty"`
	Session      string        `json:"session,omitempty"`
	Retried      string        `json:"retried,omitempty"`
	Duration     DurationsJSON `json:"durationMs"`
	Kernel       Kernel        `json:"kernel,omitempty"`
	Accelerator  Accel         `json:"accelerator,omitempty"`
	WhySlow      string        `json:"whySlow,omitempty"`
	Cloned       bool          `json:"cloned"`
	Pooled       bool          `json:"pooled"`
	MemoryMB     int           `json:"memoryMb,omitempty"`
	Policy       Policy        `json:"policy"`
	Compiled     string        `json:"compiled,omitempty"`

	Artifacts        []record.Artifact  `json:"artifacts,omitempty"`
	ArtifactsRefused []record.Refusal   `json:"artifactsRefused,omitempty"`
	ArtifactsLeft    []record.Refusal   `json:"artifactsLeft,omitempty"`
	Packages         []InstalledPackage `json:"packages,omitempty"`
	RetryAfter       policy.Millis      `json:"retryAfterMs,omitempty"`
	Redacted         []string           `json:"redacted,omitempty"`
	Approvals        []Approval         `json:"approvals,omitempty"`
	PolicyChanges    []PolicyChange     `json:"policyChanges,omitempty"`
}

// MarshalJSON gives the wire form.
func (r Result) MarshalJSON() ([]byte, error) { return json.Marshal(r.JSON()) }

// JSON is the wire form.
func (r Result) JSON() ResultJSON {
	j := ResultJSON{
		RunID: r.RunID, Outcome: r.Outcome, ExitCode: r.ExitCode, Truncated: r.Truncated, TimedOut: r.TimedOut, OOM: r.OOM,
		Error: r.Error, Hint: r.Hint, Value: r.Value, Session: r.Session, Retried: r.Retried, Duration: r.Duration.wire(), Kernel: r.Kernel, Accelerator: r.Accelerator, WhySlow: r.WhySlow, Cloned: r.Cloned, Pooled: r.Pooled, MemoryMB: r.MemoryMB, Policy: r.Policy, Compiled: r.Compiled,
		Artifacts: r.Artifacts, ArtifactsRefused: r.ArtifactsRefused, ArtifactsLeft: r.ArtifactsLeft, Approvals: r.Approvals, PolicyChanges: r.PolicyChanges, Packages: r.Packages, RetryAfter: policy.Millis(r.RetryAfter), Redacted: r.Redacted,
	}
	j.Stdout, j.StdoutBase64 = text(r.Stdout)
	j.Stderr, j.StderrBase64 = text(r.Stderr)
	if j.Policy.Denials == nil {
		j.Policy.Denials = []policy.Denial{}
	}
	return j
}

// text is a stream as JSON can hold it, and exactly where that loses something.
func text(b []byte) (plain, exact string) {
	if utf8.Valid(b) {
		return string(b), ""
	}
	return string(b), base64.StdEncoding.EncodeToString(b)
}

// UnmarshalJSON reads the wire form.
func (r *Result) UnmarshalJSON(data []byte) error {
	var j ResultJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*r = Result{
		RunID: j.RunID, Outcome: j.Outcome, ExitCode: j.ExitCode, Stdout: []byte(j.Stdout), Stderr: []byte(j.Stderr), Truncated: j.Truncated,
		TimedOut: j.TimedOut, OOM: j.OOM, Error: j.Error, Hint: j.Hint, Value: j.Value, Session: j.Session, Retried: j.Retried, Duration: j.Duration.durations(), Kernel: j.Kernel, Accelerator: j.Accelerator, WhySlow: j.WhySlow, Cloned: j.Cloned, Pooled: j.Pooled,
		MemoryMB: j.MemoryMB, Policy: j.Policy, Compiled: j.Compiled, Artifacts: j.Artifacts, ArtifactsRefused: j.ArtifactsRefused, ArtifactsLeft: j.ArtifactsLeft, Approvals: j.Approvals, PolicyChanges: j.PolicyChanges, Packages: j.Packages, RetryAfter: time.Duration(j.RetryAfter), Redacted: j.Redacted,
	}
	for from, to := range map[string]*[]byte{j.StdoutBase64: &r.Stdout, j.StderrBase64: &r.Stderr} {
		if from != "" {
			b, err := base64.StdEncoding.DecodeString(from)
			if err != nil {
				return err
			}
			*to = b
		}
	}
	return nil
}
