package history

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Bounds of a worker's report about a run.
const (
	MaxSaidList  = 1000     // denials, packages, and artifacts that were refused
	MaxSaidError = 4 << 10  // bytes of an error
	MaxSaidValue = 64 << 10 // bytes of a step's value

	maxSaidText   = 1300    // bytes of a text in a line: 300 of the guest's, each escaped, and unitask's words
	maxSaidName   = 300     // bytes of a name that got a secret
	maxSaidNumber = 1 << 48 // bytes and milliseconds of a line, so that sums of all lines do not overflow
	maxSaidCount  = 1 << 30 // other numbers of a line
)

// BoundSaidLine bounds a line of a worker's netlog to what a run here could have. That concerns its texts, its numbers,
// and the secrets that it names, which must have been granted.
//
// It removes values from a text before it changes the text, since it would not find a changed value. It leaves out a
// text that is too long. It would not find a part of a value either, and searching costs time for each byte.
func BoundSaidLine(d *netstack.Decision, granted []policy.SecretRule, redactor *record.Redactor) {
	bound := func(text string, most int) string {
		if len(text) > most {
			return "(too long)"
		}
		return bounded.Text(redactor.String(text), most)
	}
	nameMost := maxSaidText // for a DNS question about no host, as in local runs
	if len(d.Secrets)+len(d.Exposed) > 0 {
		nameMost = maxSaidName
	}
	d.Name = bound(d.Name, nameMost)
	for _, text := range []*string{&d.Addr, &d.Rule, &d.Reason, &d.Dialled, &d.Method, &d.Path, &d.ALPN} {
		*text = bound(*text, maxSaidText)
	}
	if !slices.Contains([]string{"dns", "tcp", "http"}, d.Proto) {
		d.Proto = "other"
	}
	for _, number := range []*int64{&d.BytesUp, &d.BytesDown, &d.DurationMs} {
		*number = min(max(*number, 0), maxSaidNumber)
	}
	for _, number := range []*int{&d.Count, &d.Redacted, &d.Status} {
		*number = min(max(*number, 0), maxSaidCount)
	}
	for _, names := range []*[]string{&d.Secrets, &d.Exposed} {
		slices.Sort(*names)
		*names = slices.DeleteFunc(slices.Compact(*names), func(name string) bool {
			return !slices.ContainsFunc(granted, func(s policy.SecretRule) bool { return s.Name == name })
		})
	}
}

// outcomes lists the outcomes of runs.
var outcomes = []run.Outcome{
	run.OutcomeExited, run.OutcomeSignaled, run.OutcomeTimeout, run.OutcomeOOM, run.OutcomeUndelivered,
	run.OutcomeCancelled, run.OutcomeCrashed, run.OutcomeFailed, run.OutcomeBusy, run.OutcomeLost,
}

// exitCodes are the codes of outcomes with a fixed one.
var exitCodes = map[run.Outcome]int{
	run.OutcomeTimeout: run.ExitTimeout, run.OutcomeOOM: run.ExitOOM, run.OutcomeUndelivered: run.ExitUndelivered,
}

// BoundSaidResult removes secrets from a worker's result, cuts it, and sets the exit code by the outcome. Runs of a
// fleet ask nobody, and their policies do not change: a worker's result can't claim otherwise.
func BoundSaidResult(res *run.Result, redactor *record.Redactor) {
	outcome := res.Outcome
	if clean, fields := redactor.Marshal(res); len(fields) > 0 {
		*res = run.Result{}
		_ = json.Unmarshal(clean, res) // unreadable parts are left out
	}
	if res.Outcome = outcome; !slices.Contains(outcomes, outcome) {
		res.Outcome = run.OutcomeFailed
	}
	if code := exitCodes[res.Outcome]; code != 0 {
		res.ExitCode = code
	} else if res.Outcome != run.OutcomeExited && res.ExitCode == 0 {
		res.ExitCode = run.ExitHost
	}
	res.Hints = saidHints(res.Hints)
	res.Session, res.Approvals, res.PolicyChanges, res.ArtifactsLeft = "", nil, nil, nil
	said, value := bounded.Text(res.Error, MaxSaidError), res.Value[:min(len(res.Value), MaxSaidValue)]
	bounded.Fields(res, bounded.Limits{Text: maxSaidText, List: MaxSaidList, Number: maxSaidNumber})
	res.Error, res.Value = said, strings.ToValidUTF8(value, "")
	res.ExitCode = min(max(res.ExitCode, 0), maxExitCode)
	d := &res.Duration
	d.Total, d.Boot, d.Connect, d.Run = max(d.Total, 0), max(d.Boot, 0), max(d.Connect, 0), max(d.Run, 0)
}

// BoundSaidWould keeps only a request's fields of a worker's advice, since an error's text contains their keys.
func BoundSaidWould(would map[string]int64) {
	maps.DeleteFunc(would, func(key string, _ int64) bool {
		return !slices.ContainsFunc(policy.Fields, func(f policy.Field) bool { return f.Key == key })
	})
}

// maxExitCode is the highest exit code of a process.
const maxExitCode = 255
