// Package runlog collects the audit entries of one run, and of callers' requests that were refused before they had one.
package runlog

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Log collects the entries of one run for the audit log.
type Log struct {
	log    audit.Log
	about  audit.Entry // common to all of its entries
	redact *record.Redactor
	tell   func(run.Event)

	Session bool   // not a run that ends with its code
	Worker  string // the fleet's worker that reported the run's actions and end; "" means that this host has observed them

	mu      sync.Mutex
	short   bool                // the disk is full: entries must fit into the room that a record reserves for its end
	failed  error               // the first entry that could not be written
	used    map[string][]string // hosts that received a secret's value, by the secret's name
	exposed map[string]int      // answers that contained a secret's value without reason, by the secret's name
	refused map[string]int      // by protocol
	first   map[string]string   // first refusal of each protocol
}

// New returns the log of one run. tell receives errors of writing.
func New(log audit.Log, rec *record.Run, via record.Via, redactor *record.Redactor, tell func(run.Event)) *Log {
	return &Log{log: log, about: audit.Entry{Run: rec.ID, Caller: rec.Owner, Via: string(via)}, redact: redactor,
		tell: tell,
		used: map[string][]string{}, exposed: map[string]int{}, refused: map[string]int{}, first: map[string]string{}}
}

// Note writes one entry.
func (a *Log) Note(kind audit.Kind, detail any) { a.Write(a.Entry(kind, detail)) }

// Entry returns an entry with its detail redacted.
func (a *Log) Entry(kind audit.Kind, detail any) audit.Entry {
	e := a.about
	e.Time, e.Kind = time.Now(), kind
	e.Detail, _ = a.redact.Marshal(detail)
	return e
}

// Write appends entries. A failure is always reported, and is an error of a run that must have its entries (Missing).
func (a *Log) Write(entries ...audit.Entry) {
	err := a.log.Append(entries...)
	if err == nil {
		return
	}
	a.tell(run.Event{Kind: run.EventStore, Message: err.Error()})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		a.failed = err
	}
}

// Missing returns why the entries of a run that must have them are missing, or nil.
func (a *Log) Missing(granted policy.Effective) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil || !granted.Audit {
		return nil
	}
	return failure.Host("audit", fmt.Errorf("the policy has audit = \"required\": %w", a.failed))
}

// Started logs a run's grants and denials.
func (a *Log) Started(p run.Policy, clientTools []string) {
	e := p.Effective
	kind := audit.RunStarted
	if a.Session {
		kind = audit.SessionStarted
	}
	list := []audit.Entry{a.Entry(kind, map[string]any{"image": e.Image, "allowNet": e.AllowNet,
		"allowNetAny": e.AllowNetAny, "allowTcp": e.AllowTCP, "ask": e.Ask, "allowHttp": e.AllowHTTP,
		"files": len(e.Files), "dirs": len(e.Dirs), "ceiling": p.Ceiling, "tools": e.Tools,
		"clientTools": clientTools[:min(len(clientTools), maxListed)]})}
	for _, s := range e.Secrets {
		list = append(list, a.Entry(audit.SecretGranted, map[string]any{"secret": s.Name, "hosts": s.Bound()}))
	}
	if len(p.Denials) > 0 {
		list = append(list, a.Denied(p.Denials))
	}
	a.Write(list...)
}

// Denied returns an entry for denied requests.
func (a *Log) Denied(list []policy.Denial) audit.Entry {
	return a.Entry(audit.PolicyDenied, map[string]any{"count": len(list), "denials": list[:min(len(list), maxListed)]})
}

const (
	// maxListed bounds the lists in one entry.
	maxListed = 64
	// maxShort bounds the lists in one entry when the disk is full.
	maxShort = 2
	// MoreListed is the last element of a list that was cut.
	MoreListed = "and more"
)

// Decided counts the result of a network request of the code.
func (a *Log) Decided(d netstack.Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range d.Secrets {
		switch hosts := a.used[name]; {
		case slices.Contains(hosts, d.Name):
		case len(hosts) < maxListed:
			a.used[name] = append(hosts, d.Name)
		case len(hosts) == maxListed:
			a.used[name] = append(hosts, MoreListed)
		}
	}
	for _, name := range d.Exposed {
		a.exposed[name]++
	}
	if d.Verdict == netstack.Denied {
		a.refused[d.Proto] += max(1, d.Count)
		if _, ok := a.first[d.Proto]; !ok {
			a.first[d.Proto] = cmp.Or(d.Name, d.Addr) + ": " + d.Reason
		}
	}
}

// Cut returns why the network was cut before the run's end, "" if it was not.
func (a *Log) Cut() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, why, _ := strings.Cut(a.first[netstack.ProtoNetlog], ": ")
	return why
}

// network returns the entries about the run's use of the network.
func (a *Log) network() (list []audit.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.used) > 0 {
		list = append(list, a.Entry(audit.SecretUsed, a.said(map[string]any{"hosts": a.usedBy()})))
	}
	if n := a.redact.Exposed(); len(a.exposed) > 0 || n > 0 {
		list = append(list, a.Entry(audit.SecretExposed, a.said(map[string]any{"answers": a.exposed, "output": n})))
	}
	if len(a.refused) > 0 {
		list = append(list, a.Entry(audit.NetRefused, a.said(map[string]any{"count": a.refused, "first": a.first})))
	}
	return list
}

// usedBy returns the hosts that received each secret's value; only some of them if entries must be short. The caller
// holds a.mu.
func (a *Log) usedBy() map[string][]string {
	if !a.short {
		return a.used
	}
	some := map[string][]string{}
	for name, hosts := range a.used {
		if some[name] = hosts; len(hosts) > maxShort {
			some[name] = append(slices.Clone(hosts[:maxShort]), MoreListed)
		}
	}
	return some
}

// Shorten makes entries short if recorded shows that the disk is full.
func (a *Log) Shorten(recorded error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.short = errors.Is(recorded, syscall.ENOSPC) || errors.Is(recorded, syscall.EDQUOT)
}

// Left logs a session's use of the network when the session leaves this process and has not ended.
func (a *Log) Left() {
	if list := a.network(); len(list) > 0 {
		a.Write(list...)
	}
}

// Ended logs how a run ended, its use of the network, and the digest of its record, "" if there is none.
func (a *Log) Ended(res *run.Result, digest string) {
	list := a.network()
	if limits := res.Limits(); len(limits) > 0 {
		list = append(list, a.Entry(audit.LimitHit, a.said(map[string]any{"limits": limits})))
	}
	kind := audit.RunEnded
	if a.Session {
		kind = audit.SessionEnded
	}
	detail := map[string]any{"outcome": res.Outcome, "exitCode": res.ExitCode,
		"ms": res.Duration.Total.Milliseconds(), "error": Shorten(res.Error)}
	if digest != "" {
		detail[RecordDigest] = digest
	}
	a.Write(append(list, a.Entry(kind, a.said(detail)))...)
}

// RecordDigest is the member of a run's last entry that has the SHA-256 of its run.json.
const RecordDigest = "recordSha256"

// said marks facts that a worker has reported.
func (a *Log) said(detail map[string]any) map[string]any {
	if a.Worker != "" {
		detail["saidBy"] = "worker " + a.Worker
	}
	return detail
}

// maxReason bounds a reason in an entry.
const maxReason = 1 << 10

func Shorten(text string) string {
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}
