package runlog

import (
	"sync"
	"time"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Note writes down that a caller was refused something before there was a record of it: the first of each kind of a
// caller, then one in refusalPeriod, with how many were left out. secrets are values that must not be in it.
func (r *Refusals) Note(to *audit.Journal, kind audit.Kind, caller run.Caller, reason error, secrets map[string]string) {
	caller = caller.WithDefaults()
	leftOut, now := r.count(string(kind)+" "+caller.Name, time.Now())
	if !now {
		return
	}
	detail := map[string]any{"error": "", "leftOut": leftOut}
	if redactor, err := record.NewRedactor(record.Secrets{Given: secrets}); err == nil {
		detail["error"] = Shorten(redactor.String(reason.Error()))
	}
	to.Write(audit.Entry{Time: time.Now(), Kind: kind, Caller: caller.Name, Via: string(caller.Via), Detail: detail})
}

// refusalPeriod is how often the same caller's refusals are written down.
const refusalPeriod = 10 * time.Second

// maxRefused bounds the callers whose refusals are counted.
const maxRefused = 1024

// Refusals counts what callers were refused.
type Refusals struct {
	mu   sync.Mutex
	seen map[string]*refusal
}

type refusal struct {
	since   time.Time
	leftOut int
}

// Count says whether this one is to be written down, and how many before it were not.
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
