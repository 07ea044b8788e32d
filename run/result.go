package run

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Result is the outcome of a run. `unitask run --json` prints its JSON form, which the record and MCP also use.
type Result struct {
	RunID     string  `json:"runId"`
	Outcome   Outcome `json:"outcome"`
	ExitCode  int     `json:"exitCode"`
	Stdout    []byte  `json:"-"` // empty when IO.Stdout was given
	Stderr    []byte  `json:"-"`
	Truncated bool    `json:"truncated"` // more was printed than OutputBytes
	TimedOut  bool    `json:"timedOut"`
	OOM       bool    `json:"oom"`
	// ProcessesRefused is how many processes and threads the code did not get beyond MaxProcesses, as the guest says.
	ProcessesRefused int    `json:"processesRefused,omitempty"`
	Error            string `json:"error,omitempty"` // one sentence for every outcome but exited
	// Hints describe what the code seems to have lacked (a host, a module, a file), and how to provide it.
	Hints []Hint `json:"hints,omitempty"`
	// Value is the value of a session step's last expression, and Session is the session's id.
	Value   string `json:"value,omitempty"`
	Session string `json:"session,omitempty"`
	// Retried explains why the run was repeated on linux (Request.KernelRetry), "" if it was not.
	Retried  string    `json:"retried,omitempty"`
	Duration Durations `json:"-"`

	Kernel      Kernel `json:"kernel,omitempty"`
	Accelerator Accel  `json:"accelerator,omitempty"`
	// WhySlow explains why the accelerator is not hardware, if it is TCG and unitask chose it.
	WhySlow  string `json:"whySlow,omitempty"`
	Cloned   bool   `json:"cloned"` // the machine was cloned from a template; otherwise booted
	Pooled   bool   `json:"pooled"` // the clone was ready
	MemoryMB int    `json:"memoryMb,omitempty"`
	Policy   Policy `json:"policy"`
	// Compiled tells, for a compiled language, where the program came from. CompiledCached means the store of compiled
	// programs, and CompiledKept that the program was added to it. Otherwise it is "".
	Compiled string `json:"compiled,omitempty"`

	// Artifacts are the files that the code left in /out; they are in the record (record.Store.OpenArtifact).
	// ArtifactsRefused lists files that were not returned: a hundred by name, and the number of others.
	// ArtifactsLeft lists those that were not copied to IO.Out.
	Artifacts        []record.Artifact `json:"artifacts,omitempty"`
	ArtifactsRefused []record.Refusal  `json:"artifactsRefused,omitempty"`
	ArtifactsLeft    []record.Refusal  `json:"artifactsLeft,omitempty"`

	// Packages lists the packages of Request.Packages, with their dependencies.
	Packages []InstalledPackage `json:"packages,omitempty"`
	// RetryAfter tells, if the outcome is busy, when to try again.
	RetryAfter time.Duration `json:"-"`
	// Redacted names the fields of the request that contained a secret ("args[0]", "env.NAME", "code"). The
	// record has a mark instead, and can't be run again.
	Redacted []string `json:"redacted,omitempty"`
	// Approvals are the questions that were asked (Request.Ask), and their outcomes.
	Approvals []Approval `json:"approvals,omitempty"`
	// PolicyChanges are the changes that the run's owner made during the run.
	PolicyChanges []PolicyChange `json:"policyChanges,omitempty"`
}

// Durations are the times of a run's phases; in JSON, milliseconds.
type Durations struct {
	Total   time.Duration // from the request to the end
	Boot    time.Duration // until the guest waited for its code
	Connect time.Duration // until the code was in the machine and started
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

// Policy is what a run was granted and denied.
type Policy struct {
	Effective policy.Effective `json:"effective"`
	Denials   []policy.Denial  `json:"denials"`
	Ceiling   string           `json:"ceiling,omitempty"` // the file that limited it
}

// InstalledPackage is a package from Request.Packages, or a dependency.
type InstalledPackage struct {
	Name    string `json:"name"` // pip:requests
	Version string `json:"version"`
	Digest  string `json:"digest,omitempty"` // of its archive
}

// plainResult is a Result without methods.
type plainResult Result

// ResultJSON is the wire form of a Result. It contains streams that are not UTF-8 as base64, too.
type ResultJSON struct {
	plainResult
	Stdout       string        `json:"stdout"`
	Stderr       string        `json:"stderr"`
	StdoutBase64 string        `json:"stdoutBase64,omitempty"`
	StderrBase64 string        `json:"stderrBase64,omitempty"`
	Duration     DurationsJSON `json:"durationMs"`
	RetryAfter   policy.Millis `json:"retryAfterMs,omitempty"`
	// Hint contains the texts of Hints, for programs that were written before there were Hints.
	Hint string `json:"hint,omitempty"`
}

// MarshalJSON returns the wire form.
func (r Result) MarshalJSON() ([]byte, error) { return json.Marshal(r.JSON()) }

// JSON returns the wire form.
func (r Result) JSON() ResultJSON {
	j := ResultJSON{plainResult: plainResult(r), Duration: r.Duration.wire(), RetryAfter: policy.Millis(r.RetryAfter)}
	j.Hint = hintTexts(r.Hints)
	j.Stdout, j.StdoutBase64 = text(r.Stdout)
	j.Stderr, j.StderrBase64 = text(r.Stderr)
	if j.Policy.Denials == nil {
		j.Policy.Denials = []policy.Denial{}
	}
	return j
}

// text returns a stream as JSON text, and its exact bytes if the text loses some.
func text(b []byte) (plain, exact string) {
	if utf8.Valid(b) {
		return string(b), ""
	}
	return string(b), base64.StdEncoding.EncodeToString(b)
}

// UnmarshalJSON parses the wire form.
func (r *Result) UnmarshalJSON(data []byte) error {
	var j ResultJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*r = Result(j.plainResult)
	if len(r.Hints) == 0 && j.Hint != "" { // from a record that is older than Hints
		r.Hints = []Hint{{Text: j.Hint}}
	}
	r.Duration, r.RetryAfter = j.Duration.durations(), time.Duration(j.RetryAfter)
	for _, stream := range []struct {
		to          *[]byte
		text, exact string
	}{{&r.Stdout, j.Stdout, j.StdoutBase64}, {&r.Stderr, j.Stderr, j.StderrBase64}} {
		*stream.to = []byte(stream.text)
		if stream.exact != "" {
			b, err := base64.StdEncoding.DecodeString(stream.exact)
			if err != nil {
				return err
			}
			*stream.to = b
		}
	}
	return nil
}
