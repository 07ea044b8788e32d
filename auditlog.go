package unitask

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/unitask/unitask/audit"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/record"
)

// Audit returns the log of what matters across runs.
func (rt *Runtime) Audit() audit.Log { return audit.In(rt.opts.Home) }

// audited gathers what the audit log says of one run.
type audited struct {
	log    audit.Log
	about  audit.Entry // what all of its entries have
	redact *record.Redactor
	tell   func(Event)

	mu      sync.Mutex
	used    map[string][]string // hosts that a secret's value went to, by its name
	refused map[string]int      // by protocol
	first   map[string]string   // refusal of a protocol
}

func (rt *Runtime) audited(rec *record.Run, via record.Via, redactor *record.Redactor, tell func(Event)) *audited {
	return &audited{log: rt.Audit(), about: audit.Entry{Run: rec.ID, Caller: rec.Owner, Via: string(via)}, redact: redactor, tell: tell,
		used: map[string][]string{}, refused: map[string]int{}, first: map[string]string{}}
}

// entry has no secret in its detail.
func (a *audited) entry(kind audit.Kind, detail any) audit.Entry {
	e := a.about
	e.Time, e.Kind = time.Now(), kind
	e.Detail, _ = clean(a.redact, detail)
	return e
}

// write appends. That it failed is no failure of the run.
func (a *audited) write(entries ...audit.Entry) {
	if err := a.log.Append(entries...); err != nil {
		a.tell(Event{Kind: EventStore, Message: err.Error()})
	}
}

// started writes what a run is granted and denied.
func (a *audited) started(p Policy) {
	e := p.Effective
	list := []audit.Entry{a.entry(audit.RunStarted, map[string]any{"image": e.Image, "allowNet": e.AllowNet, "allowNetAny": e.AllowNetAny, "allowTcp": e.AllowTCP, "ask": e.Ask, "allowHttp": e.AllowHTTP,
		"files": len(e.Files), "dirs": len(e.Dirs), "ceiling": p.Ceiling})}
	for _, s := range e.Secrets {
		list = append(list, a.entry(audit.SecretGranted, map[string]any{"secret": s.Name, "hosts": s.Bound()}))
	}
	if len(p.Denials) > 0 {
		list = append(list, a.entry(audit.PolicyDenied, map[string]any{"count": len(p.Denials), "denials": p.Denials[:min(len(p.Denials), maxAudited)]}))
	}
	a.write(list...)
}

const (
	// maxAudited bounds what one entry lists.
	maxAudited = 64
	// moreAudited is the last of a list that has more than that.
	moreAudited = "and more"
)

// decided notes a line of the netlog.
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
	if d.Verdict == netstack.Denied {
		a.refused[d.Proto]++
		if _, ok := a.first[d.Proto]; !ok {
			a.first[d.Proto] = cmp.Or(d.Name, d.Addr) + ": " + d.Reason
		}
	}
}

// ended writes how a run ended, and what it did with the network.
func (a *audited) ended(res *Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []audit.Entry
	if len(a.used) > 0 {
		list = append(list, a.entry(audit.SecretUsed, map[string]any{"hosts": a.used}))
	}
	if len(a.refused) > 0 {
		list = append(list, a.entry(audit.NetRefused, map[string]any{"count": a.refused, "first": a.first}))
	}
	a.write(append(list, a.entry(audit.RunEnded, map[string]any{"outcome": res.Outcome, "exitCode": res.ExitCode, "ms": res.Duration.Total.Milliseconds(), "error": res.Error}))...)
}
