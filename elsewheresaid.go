package unitask

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/nesting"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// What a worker says of a run that it had. Nobody here has seen it: it is bounded as what runs here say, and marked as
// said by the worker.

// Bounds of what a worker says.
const (
	maxSaidDecisions = 10_000   // lines of a netlog, as of runs here
	maxSaidLine      = 16 << 10 // bytes of one
	maxSaidValues    = 256      // JSON values of one
	maxSaidText      = 1200     // bytes of a text in it: 300 of the guest's, each as an escape
	maxSaidName      = 300      // bytes of a name
	maxSaidUses      = 64       // pairs of a secret and a host that the audit log names
	maxSaidList      = 1000     // denials, and artifacts that were refused
	maxSaidError     = 4 << 10  // bytes of an error
)

// SaidBy names the worker that says what follows of the run.
func (r *FleetRun) SaidBy(worker string) {
	r.worker = bounded.Text(worker, 64)
	r.x.audit.Worker = r.worker
}

// Decided puts a line of the worker's netlog into the record, if it is one. more says that further ones are taken.
func (r *FleetRun) Decided(line []byte) (more bool) {
	if r.decided == maxSaidDecisions {
		r.x.streams.Events(Event{Kind: EventStore, Message: fmt.Sprintf("the worker's netlog has more than %d lines: the rest is left out", maxSaidDecisions)})
	}
	if r.decided++; r.decided > maxSaidDecisions {
		return false
	}
	var d Decision
	if len(line) > maxSaidLine || nesting.Check(line, 4, maxSaidValues) != nil || json.Unmarshal(line, &d) != nil {
		return true
	}
	r.bound(&d)
	text, _ := r.x.redactor.Marshal(history.NetlogLine{Schema: history.NetlogSchema, Run: r.x.rec.ID, Caller: r.x.rec.Owner, Worker: r.worker, Decision: d})
	r.x.rec.Netlog(text)
	r.x.audit.Decided(r.counted(d))
	return true
}

// bound makes a worker's line one that a run here could have: in its texts, its numbers, and the secrets that it names.
func (r *FleetRun) bound(d *Decision) {
	d.Name = bounded.Text(d.Name, maxSaidName)
	for _, text := range []*string{&d.Addr, &d.Rule, &d.Reason, &d.Dialled, &d.Method, &d.Path, &d.ALPN} {
		*text = bounded.Text(*text, maxSaidText)
	}
	if !slices.Contains([]string{"dns", "tcp", "http"}, d.Proto) {
		d.Proto = "other"
	}
	d.BytesUp, d.BytesDown, d.DurationMs, d.Redacted = max(d.BytesUp, 0), max(d.BytesDown, 0), max(d.DurationMs, 0), max(d.Redacted, 0)
	slices.Sort(d.Secrets)
	d.Secrets = slices.DeleteFunc(slices.Compact(d.Secrets), func(name string) bool {
		return !slices.ContainsFunc(r.x.granted.Secrets, func(s policy.SecretRule) bool { return s.Name == name })
	})
}

// counted is a line as the audit log counts it: of many uses of secrets the first are named, so that none of them
// hides what the others were.
func (r *FleetRun) counted(d netstack.Decision) netstack.Decision {
	if r.uses == nil {
		r.uses = map[string]bool{}
	}
	for _, name := range d.Secrets {
		use := name + " " + d.Name
		if !r.uses[use] && len(r.uses) >= maxSaidUses {
			d.Name = runlog.MoreListed
			break
		}
		r.uses[use] = true
	}
	return d
}

// boundResult cuts what a worker says of a run's end, takes secrets out, and has the exit code be that of its outcome.
func boundResult(res *Result, redactor *record.Redactor) {
	if code := map[Outcome]int{OutcomeTimeout: ExitTimeout, OutcomeOOM: ExitOOM, OutcomeUndelivered: ExitUndelivered}[res.Outcome]; code != 0 {
		res.ExitCode = code
	}
	res.Error = bounded.Text(res.Error, maxSaidError)
	res.Policy.Denials = res.Policy.Denials[:min(len(res.Policy.Denials), maxSaidList)]
	res.ArtifactsRefused = res.ArtifactsRefused[:min(len(res.ArtifactsRefused), maxSaidList)]
	for i := range res.ArtifactsRefused {
		r := &res.ArtifactsRefused[i]
		r.Path, r.Reason = bounded.Text(redactor.String(r.Path), maxSaidText), bounded.Text(redactor.String(r.Reason), maxSaidText)
	}
	for _, text := range []*string{&res.Hint, &res.Value, &res.WhySlow, &res.Retried, &res.Compiled} {
		*text = redactor.String(*text)
	}
	for i := range res.Policy.Denials {
		d := &res.Policy.Denials[i]
		d.Requested, d.Reason = redactor.String(d.Requested), redactor.String(d.Reason)
	}
	d := &res.Duration
	d.Total, d.Boot, d.Connect, d.Run = max(d.Total, 0), max(d.Boot, 0), max(d.Connect, 0), max(d.Run, 0)
}
