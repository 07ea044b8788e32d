package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// A worker's answer about a session is limited like a report about a run. The values of secrets that this process gave
// the session are redacted. Only files, and values that a session keeps, are passed unchanged, as for local sessions.

// saidLimits bound each field of an answer.
var saidLimits = bounded.Limits{Text: 1200, List: history.MaxSaidList, Number: math.MaxInt64}

// maxSaidRetry bounds the wait that a worker asks for.
const maxSaidRetry = time.Hour

// values holds the secrets that this process gave a session. The zero value has none.
type values struct {
	mu       sync.Mutex
	given    map[string]string // keyed by value, since a resume may change a name's value
	redactor *record.Redactor
}

// add notes values that are being sent to the worker. As with bound secrets, only complete values are redacted: only
// the worker knows which of them the machine has.
func (v *values) add(secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.given == nil {
		v.given = map[string]string{}
	}
	for _, value := range secrets {
		v.given[value] = value
	}
	var err error
	v.redactor, err = record.NewRedactor(record.Secrets{Bound: v.given})
	return err
}

// all returns the values.
func (v *values) all() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.given)
}

// known returns a redactor for the values; nil redacts nothing.
func (v *values) known() *record.Redactor {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.redactor
}

// boundReply limits and redacts an answer. It returns an error if the answer does not fit the call.
func boundReply(r *reply, ask call, redactor *record.Redactor) error {
	if r.Error != nil { // a failed step has a result, too; an error has nothing else
		*r = reply{
			Answer: sessiond.Answer{Error: r.Error, Result: r.Result}, Stdout: r.Stdout, Stderr: r.Stderr, Other: r.Other,
		}
	}
	if r.Result != nil {
		history.BoundSaidResult(r.Result, redactor)
		r.Result.Session = ask.Session
		r.Result.Stdout, r.Result.Stderr = withoutValues(r.Stdout, redactor), withoutValues(r.Stderr, redactor)
	}
	if r.Error != nil {
		boundError(r.Error, redactor)
		return r.Error
	}
	if len(r.Value) > unitask.MaxSessionValue || len(r.Value) > 0 && !json.Valid(r.Value) {
		return fmt.Errorf("a value of %d bytes: %w", len(r.Value), errMalformed)
	}
	if len(r.Content) > unitask.MaxSessionFile {
		return fmt.Errorf("a file of %d bytes: %w", len(r.Content), errMalformed)
	}
	r.Run = ""
	for i := range r.Names {
		r.Names[i] = redactor.String(r.Names[i])
	}
	bounded.Fields(&r.Names, saidLimits)
	for i := range r.Files { // limiting may change a value's form, so it is done last
		r.Files[i].Path, r.Files[i].Size = redactor.String(r.Files[i].Path), max(r.Files[i].Size, 0)
	}
	bounded.Fields(&r.Files, bounded.Limits{Text: maxSaidPath, List: unitask.MaxSessionList, Number: math.MaxInt64})
	return boundViews(r.Sessions, ask, redactor)
}

// withoutValues redacts the values in a stream.
func withoutValues(text []byte, redactor *record.Redactor) []byte {
	if redactor == nil || len(text) == 0 {
		return text
	}
	return []byte(redactor.String(string(text)))
}

// maxSaidPath bounds a path, in bytes.
const maxSaidPath = 4096

// boundViews limits the views of sessions, which must be the sessions of the call.
func boundViews(list []sessiond.View, ask call, redactor *record.Redactor) error {
	want := 0
	switch ask.Op {
	case sessiond.OpNew, sessiond.OpResume, sessiond.OpExtend:
		want = 1
	case sessiond.OpFork:
		want = ask.Count
	}
	if len(list) != want {
		return fmt.Errorf("%d sessions, %d wanted: %w", len(list), want, errMalformed)
	}
	for i := range list {
		if !boundView(&list[i], redactor) {
			return fmt.Errorf("session %.80q: %w", list[i].ID, errMalformed)
		}
		id := list[i].ID
		again := slices.ContainsFunc(list[:i], func(v sessiond.View) bool { return v.ID == id })
		switch ask.Op {
		case sessiond.OpFork:
			again = again || id == ask.Session || list[i].Parent != ask.Session
		case sessiond.OpResume, sessiond.OpExtend:
			again = id != ask.Session
		}
		if again {
			return fmt.Errorf("session %.80q is another one than was asked for: %w", id, errMalformed)
		}
	}
	return nil
}

// boundView limits a session's view, and reports whether it is valid.
func boundView(v *sessiond.View, redactor *record.Redactor) bool {
	if text, fields := redactor.Marshal(v); len(fields) > 0 {
		id := v.ID
		*v = sessiond.View{}
		_ = json.Unmarshal(text, v) // unreadable members are left out
		if v.ID != id {
			return false
		}
	}
	bounded.Fields(v, saidLimits)
	v.Name = "" // for sessions on this host
	if v.State != sessiond.Paused && v.State != sessiond.Lost {
		v.State = sessiond.Running
	}
	return idForm.MatchString(v.ID) && (v.Parent == "" || idForm.MatchString(v.Parent))
}

// boundError limits and redacts an error.
func boundError(e *sessiond.Error, redactor *record.Redactor) {
	e.Message = bounded.Text(redactor.String(e.Message), history.MaxSaidError)
	e.RetryAfterMS = min(max(e.RetryAfterMS, 0), maxSaidRetry.Milliseconds())
	if !slices.Contains(
		[]string{sessiond.CodeGone, sessiond.CodeBusy, sessiond.CodeUsage, sessiond.CodeCancelled},
		e.Code,
	) {
		e.Code = sessiond.CodeFailed
	}
	if e.Field == nil {
		return
	}
	for _, text := range []*string{&e.Field.Field, &e.Field.Value, &e.Field.Reason} {
		*text = redactor.String(*text)
	}
	bounded.Fields(&e.Field, saidLimits)
	history.BoundSaidWould(e.Field.Would)
}

// refusesStep returns an error for a step that a fleet can't run, because it has files of this host.
func refusesStep(step unitask.Step) error {
	if len(step.Files)+len(step.Dirs)+len(step.InlineFiles) == 0 {
		return nil
	}
	return policy.Bad("files", "of a step", "do not go to a session on a fleet: write them (session cp)")
}

// errPaused means that a worker reports a session as resumed while its entry is still paused.
var errPaused = errors.New("the session is still paused, though its worker says that it has continued with it")
