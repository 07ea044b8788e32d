package runlog

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Note logs that a caller's request was refused before it had a record. It logs the first refusal of each kind and
// caller, then one in each refusalPeriod, with the number of those left out. A reason may quote the request, so it is
// left out if the request contains a secret's value.
func (r *Refusals) Note(to *audit.Journal, kind audit.Kind, caller run.Caller, reason error, asked run.Request) {
	caller = caller.WithDefaults()
	leftOut, now := r.count(string(kind)+" "+caller.Name, time.Now())
	if !now {
		return
	}
	detail := map[string]any{"error": "", "leftOut": leftOut}
	if redactor, err := record.NewRedactor(record.Secrets{Given: asked.Secrets}); err == nil {
		detail["error"] = Shorten(redactor.String(reason.Error()))
		_, in := redactor.Marshal(asked)
		if hosts := fmt.Sprint(asked.SecretHosts); redactor.String(hosts) != hosts {
			in = append(in, "secrets")
		}
		if len(in) > 0 {
			detail["error"] = "not shown: a secret's value stands in the request's " + Shorten(strings.Join(in, ", "))
		}
	}
	to.Write(audit.Entry{Time: time.Now(), Kind: kind, Caller: caller.Name, Via: string(caller.Via), Detail: detail})
}

// refusalPeriod is the interval at which the same caller's refusals are logged.
const refusalPeriod = 10 * time.Second

// maxRefused bounds the callers whose refusals are counted.
const maxRefused = 1024

// Refusals counts callers' refusals.
type Refusals struct {
	mu   sync.Mutex
	seen map[string]*refusal
}

type refusal struct {
	since   time.Time
	leftOut int
}

// count reports whether to log this refusal, and how many before it were not logged.
func (r *Refusals) count(key string, at time.Time) (leftOut int, now bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.seen[key]; last != nil && at.Sub(last.since) < refusalPeriod {
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
