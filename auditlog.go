package unitask

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
)

// Audit is the log of what matters across runs.
func (rt *Runtime) Audit() *audit.Journal { return rt.journal }

// audited gathers what the audit log says of one run.
type audited struct {
	log    audit.Log
	about  audit.Entry // what all of its entries have
	redact *record.Redactor
	tell   func(Event)

	session bool   // not a run that ends with its code
	worker  string // of a fleet, that says what the run did, and how it ended; "" is that this host has seen it

	mu      sync.Mutex
	short   bool                // the disk is full: entries are short enough for the room that a record's end reserves
	failed  error               // the first entry that could not be written
	used    map[string][]string // hosts that a secret's value went to, by its name
	exposed map[string]int      // by secrets' names: answers that had their values without reason
	refused map[string]int      // by protocol
	first   map[string]string   // refusal of a protocol
}

func (rt *Runtime) audited(rec *record.Run, via record.Via, redactor *record.Redactor, tell func(Event)) *audited {
	return &audited{log: rt.journal.Log, about: audit.Entry{Run: rec.ID, Caller: rec.Owner, Via: string(via)}, redact: redactor, tell: tell,
		used: map[string][]string{}, exposed: map[string]int{}, refused: map[string]int{}, first: map[string]string{}}
}

// entry has no secret in its detail.
func (a *audited) entry(kind audit.Kind, detail any) audit.Entry {
	e := a.about
	e.Time, e.Kind = time.Now(), kind
	e.Detail, _ = a.redact.Marshal(detail)
	return e
}

// write appends. That it failed is a failure of a run that must have its entries (missing), and told in any case.
func (a *audited) write(entries ...audit.Entry) {
	err := a.log.Append(entries...)
	if err == nil {
		return
	}
	a.tell(Event{Kind: EventStore, Message: err.Error()})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		a.failed = err
	}
}

// missing is why entries are missing of a run that must have them.
func (a *audited) missing(granted policy.Effective) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil || !granted.Audit {
		return nil
	}
	return failure.Host("audit", fmt.Errorf("the policy has audit = \"required\": %w", a.failed))
}

// started writes what a run is granted and denied.
func (a *audited) started(p Policy) {
	e := p.Effective
	kind := audit.RunStarted
	if a.session {
		kind = audit.SessionStarted
	}
	list := []audit.Entry{a.entry(kind, map[string]any{"image": e.Image, "allowNet": e.AllowNet, "allowNetAny": e.AllowNetAny, "allowTcp": e.AllowTCP, "ask": e.Ask, "allowHttp": e.AllowHTTP,
		"files": len(e.Files), "dirs": len(e.Dirs), "ceiling": p.Ceiling})}
	for _, s := range e.Secrets {
		list = append(list, a.entry(audit.SecretGranted, map[string]any{"secret": s.Name, "hosts": s.Bound()}))
	}
	if len(p.Denials) > 0 {
		list = append(list, a.denied(p.Denials))
	}
	a.write(list...)
}

// denied is an entry of what was asked for and not given.
func (a *audited) denied(list []policy.Denial) audit.Entry {
	return a.entry(audit.PolicyDenied, map[string]any{"count": len(list), "denials": list[:min(len(list), maxAudited)]})
}

const (
	// maxAudited bounds what one entry lists.
	maxAudited = 64
	// maxShort is the same where the disk is full.
	maxShort = 2
	// moreAudited is the last of a list that has more than that.
	moreAudited = "and more"
)

// decided notes what became of something that the code asked of the network.
func (a *audited) decided(d netstack.Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range d.Secrets {
		switch hosts := a.used[name]; {
		case slices.Contains(hosts, d.Name):
		case len(hosts) < maxAudited:
			a.used[name] = append(hosts, d.Name)
		case len(hosts) == maxAudited:
			a.used[name] = append(hosts, moreAudited)
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

// cut is why the network was cut before the run's end, "" if it was not.
func (a *audited) cut() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, why, _ := strings.Cut(a.first[netstack.ProtoNetlog], ": ")
	return why
}

// network is what it did with the network.
func (a *audited) network() (list []audit.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.used) > 0 {
		list = append(list, a.entry(audit.SecretUsed, a.said(map[string]any{"hosts": a.usedBy()})))
	}
	if n := a.redact.Exposed(); len(a.exposed) > 0 || n > 0 {
		list = append(list, a.entry(audit.SecretExposed, a.said(map[string]any{"answers": a.exposed, "output": n})))
	}
	if len(a.refused) > 0 {
		list = append(list, a.entry(audit.NetRefused, a.said(map[string]any{"count": a.refused, "first": a.first})))
	}
	return list
}

// usedBy is the hosts that each secret's value went to, some of them in a short entry; a.mu is held.
func (a *audited) usedBy() map[string][]string {
	if !a.short {
		return a.used
	}
	some := map[string][]string{}
	for name, hosts := range a.used {
		if some[name] = hosts; len(hosts) > maxShort {
			some[name] = append(slices.Clone(hosts[:maxShort]), moreAudited)
		}
	}
	return some
}

// shorten has entries be short where a record could not be written for want of room.
func (a *audited) shorten(recorded error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.short = errors.Is(recorded, syscall.ENOSPC) || errors.Is(recorded, syscall.EDQUOT)
}

// left writes what a session has done that does not go on here, and has not ended.
func (a *audited) left() {
	if list := a.network(); len(list) > 0 {
		a.write(list...)
	}
}

// ended writes how a run ended, and what it did with the network.
func (a *audited) ended(res *Result) {
	list := a.network()
	if limits := res.Limits(); len(limits) > 0 {
		list = append(list, a.entry(audit.LimitHit, a.said(map[string]any{"limits": limits})))
	}
	kind := audit.RunEnded
	if a.session {
		kind = audit.SessionEnded
	}
	a.write(append(list, a.entry(kind, a.said(map[string]any{"outcome": res.Outcome, "exitCode": res.ExitCode, "ms": res.Duration.Total.Milliseconds(), "error": shortened(res.Error)})))...)
}

// said marks what a worker has said.
func (a *audited) said(detail map[string]any) map[string]any {
	if a.worker != "" {
		detail["saidBy"] = "worker " + a.worker
	}
	return detail
}

// AuditRefusal writes down that a caller was refused something that it asked for, before there was a record of it: the
// first of each kind of a caller, then one in auditPeriod, with how many were left out. A reason may quote a part of
// the request, so it is left out where a secret stands there.
func (rt *Runtime) AuditRefusal(kind audit.Kind, caller Caller, reason error, asked Request) {
	caller = caller.WithDefaults()
	leftOut, now := rt.refusals.count(string(kind)+" "+caller.Name, time.Now())
	if !now {
		return
	}
	detail := map[string]any{"error": "", "leftOut": leftOut}
	if redactor, err := record.NewRedactor(record.Secrets{Given: asked.Secrets}); err == nil {
		detail["error"] = shortened(redactor.String(reason.Error()))
		_, in := redactor.Marshal(asked)
		if hosts := fmt.Sprint(asked.SecretHosts); redactor.String(hosts) != hosts {
			in = append(in, "secrets")
		}
		if len(in) > 0 {
			detail["error"] = "not shown: a secret's value stands in the request's " + shortened(strings.Join(in, ", "))
		}
	}
	rt.journal.Write(audit.Entry{Time: time.Now(), Kind: kind, Caller: caller.Name, Via: string(caller.Via), Detail: detail})
}

const (
	// auditPeriod is how often the same caller's refusals are written down.
	auditPeriod = 10 * time.Second
	// maxRefused bounds the callers whose refusals are counted.
	maxRefused = 1024
	// maxReason bounds what is written of one.
	maxReason = 1 << 10
)

func shortened(text string) string {
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// refusals counts what callers were refused.
type refusals struct {
	mu   sync.Mutex
	seen map[string]*refusal
}

type refusal struct {
	since   time.Time
	leftOut int
}

// count says whether this one is to be written down, and how many before it were not.
func (r *refusals) count(key string, at time.Time) (leftOut int, now bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.seen[key]; last != nil && at.Sub(last.since) < auditPeriod {
		last.leftOut++
		return 0, false
	} else if last != nil {
		leftOut = last.leftOut
	}
	if len(r.seen) >= maxRefused || r.seen == nil {
		r.seen = map[string]*refusal{}
	}
	r.seen[key] = &refusal{since: at}
	return leftOut, true
}
