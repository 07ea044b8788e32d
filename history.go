package unitask

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Summary is a recorded run in brief.
type Summary struct {
	ID       string        `json:"id"`
	Created  time.Time     `json:"created"`
	Status   record.Status `json:"status"`
	Owner    string        `json:"owner,omitempty"`
	Via      record.Via    `json:"via,omitempty"`
	Outcome  Outcome       `json:"outcome,omitempty"`
	ExitCode *int          `json:"exitCode,omitempty"`
	TotalMs  int64         `json:"durationMs,omitempty"`
	Kernel   string        `json:"kernel,omitempty"`
	Denials  int           `json:"denials"`
	Code     string        `json:"code"` // its first line
	Error    string        `json:"error,omitempty"`

	gone bool // there is no record any more
}

// State is the outcome if there is one, else the record's status.
func (s Summary) State() string {
	if s.Outcome != "" {
		return string(s.Outcome)
	}
	return string(s.Status)
}

// Unreadable is the status of a record that can't be parsed.
const Unreadable record.Status = "unreadable"

// states are what State can be, and the statuses of records behind outcomes.
var states = []string{string(OutcomeExited), string(OutcomeSignaled), string(OutcomeTimeout), string(OutcomeOOM), string(OutcomeUndelivered), string(OutcomeCancelled), string(OutcomeCrashed), string(OutcomeFailed), string(OutcomeBusy), string(OutcomeLost),
	string(record.Running), string(record.Paused), string(record.Interrupted), string(record.Done), string(Unreadable)}

// States are what a Filter's Status may be: outcomes, and the statuses of records that have none.
func States() []string { return slices.Clone(states) }

// ErrState says that a Filter's status is none that there is.
var ErrState = errors.New("use one of " + strings.Join(states, ", "))

// Filter selects runs; the zero value selects all.
type Filter struct {
	Status string        // an outcome or a record's status
	Within time.Duration // created since
	Limit  int           // at most this many; 0 is all
	Before string        // with ids before this one: older
	Owner  string        // of this owner, made through one of Via; "" is everybody's
	Via    []record.Via
	Looked int // at most this many records are looked at; 0 is all
}

// Summaries lists recorded runs, the newest first. The error is ErrState where the filter's status is unknown.
func (rt *Runtime) Summaries(f Filter) ([]Summary, error) {
	list, _, err := rt.SummariesFrom(f)
	return list, err
}

// SummariesFrom is Summaries that says how to go on: next is the Before of what may follow, "" where nothing does.
func (rt *Runtime) SummariesFrom(f Filter) (list []Summary, next string, err error) {
	if f.Status != "" && !slices.Contains(states, f.Status) {
		return nil, "", fmt.Errorf("status %.80q: %w", f.Status, ErrState)
	}
	list = []Summary{}
	looked, last := 0, ""
	for id, err := range rt.ids(f) {
		if err != nil {
			return nil, "", err
		}
		if f.Limit > 0 && len(list) == f.Limit || f.Looked > 0 && looked == f.Looked {
			return list, last, nil
		}
		looked, last = looked+1, id
		s := rt.summary(id)
		if f.Owner != "" && s.gone {
			rt.runs.Gone(f.Owner, f.Via, id)
			continue
		}
		if f.Within > 0 && time.Since(s.Created) > f.Within || f.Owner != "" && !(s.Owner == f.Owner && slices.Contains(f.Via, s.Via)) {
			continue
		}
		if f.Status == "" || f.Status == s.State() || f.Status == string(s.Status) {
			list = append(list, s)
		}
	}
	return list, "", nil
}

// ids are those that a filter is about, the newest first.
func (rt *Runtime) ids(f Filter) iter.Seq2[string, error] {
	if f.Owner != "" {
		return rt.runs.Own(f.Owner, f.Via, f.Before, "")
	}
	return func(yield func(string, error) bool) {
		ids, err := rt.runs.IDs()
		if err != nil {
			yield("", err)
			return
		}
		for _, id := range slices.Backward(ids) {
			if (f.Before == "" || id < f.Before) && !yield(id, nil) {
				return
			}
		}
	}
}

// summary reads a run's record. One that can't be read is listed as such, at the time that its id says.
func (rt *Runtime) summary(id string) Summary {
	s := Summary{ID: id}
	rec, err := rt.runs.Get(id)
	if err != nil {
		s.Status, s.Error, s.gone = Unreadable, err.Error(), errors.Is(err, record.ErrNotFound)
		s.Created, _ = record.CreatedAt(id)
		return s
	}
	s.Created, s.Status, s.Owner, s.Via, s.Error = rec.Created, rec.Status, rec.Owner, rec.Via, rec.Error
	var res Result
	if rec.Result != nil && json.Unmarshal(rec.Result, &res) == nil {
		s.Outcome, s.ExitCode, s.TotalMs, s.Kernel = res.Outcome, &res.ExitCode, res.Duration.Total.Milliseconds(), string(res.Kernel)
	}
	var denials []json.RawMessage
	if rec.Denials != nil && json.Unmarshal(rec.Denials, &denials) == nil {
		s.Denials = len(denials)
	}
	text, _, _ := rt.runs.Read(id, rec.CodeFile, 400)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(strings.ToValidUTF8(line, "")); line != "" {
			s.Code = line
			break
		}
	}
	return s
}

// Inspection is a record and the files beside it, each cut to the number of bytes asked for.
type Inspection struct {
	*record.Record
	Code    string            `json:"code"`
	Stdout  string            `json:"stdout"`
	Stderr  string            `json:"stderr"`
	Netlog  []json.RawMessage `json:"netlog"`
	Console string            `json:"console"`
	Cut     []string          `json:"cut,omitempty"` // what is longer

	// What the record and the netlog hold, decoded; their JSON has it as it was recorded.
	Ended     *Result           `json:"-"` // nil as long as the run has no result
	Denied    []policy.Denial   `json:"-"`
	Decisions []Decision        `json:"-"`
	Dropped   map[string]uint64 `json:"-"` // by kind, of what the guest sent
}

// Inspect reads a run's record and what lies beside it, at most that many bytes of each file; 0
// is all.
func (rt *Runtime) Inspect(id string, most int64) (*Inspection, error) {
	rec, err := rt.runs.Get(id)
	if err != nil {
		return nil, err
	}
	in := &Inspection{Record: rec, Netlog: []json.RawMessage{}}
	var netlog string
	for _, part := range []struct {
		name string
		to   *string
	}{{rec.CodeFile, &in.Code}, {record.StdoutFile, &in.Stdout}, {record.StderrFile, &in.Stderr}, {record.NetlogFile, &netlog}, {record.ConsoleFile, &in.Console}} {
		text, more, err := rt.runs.Read(id, part.name, most)
		if err != nil {
			return nil, err
		}
		if more {
			in.Cut = append(in.Cut, part.name)
		}
		*part.to = string(text)
	}
	for line := range strings.Lines(netlog) {
		var d Decision
		if json.Unmarshal([]byte(line), &d) == nil { // the last one of an interrupted run may be cut
			in.Netlog, in.Decisions = append(in.Netlog, json.RawMessage(line)), append(in.Decisions, d)
		}
	}
	var res Result
	if rec.Result != nil && json.Unmarshal(rec.Result, &res) == nil {
		in.Ended = &res
	}
	if rec.Denials != nil {
		_ = json.Unmarshal(rec.Denials, &in.Denied) // what another version wrote is in the JSON
	}
	if rec.Drops != nil {
		_ = json.Unmarshal(rec.Drops, &in.Dropped)
	}
	return in, nil
}

// ErrPaused says that a record is that of a session whose machine is kept on the disk.
var ErrPaused = errors.New("the session is paused")

// RemoveRun removes a run's record. The error is record.ErrRunning for one that is under way, and ErrPaused for the record of a
// session that is paused, which goes on with it.
func (rt *Runtime) RemoveRun(id string) error {
	paused, err := paused.Open(rt.opts.Home).IDs()
	if err != nil {
		return run.AsHostError("record", err)
	}
	if slices.Contains(paused, id) && !rt.runs.Held(id) {
		return fmt.Errorf("%w: %s: end it first (unitask session rm)", ErrPaused, id)
	}
	return rt.runs.Remove(id)
}

// beingMade is how long a record may take until it can be read.
const beingMade = time.Minute

// Prune removes the records that are older than age, except the newest keep, those of runs
// under way and those of sessions that are paused. It returns how many it removed.
func (rt *Runtime) Prune(keep int, age time.Duration) (removed int, err error) {
	all, err := rt.Summaries(Filter{})
	if err != nil {
		return 0, err
	}
	for i, run := range all {
		least := age
		if run.Status == Unreadable {
			least = max(age, beingMade)
		}
		if i < keep || time.Since(run.Created) < least || age > 0 && run.Created.IsZero() {
			continue
		}
		switch err := rt.RemoveRun(run.ID); {
		case err == nil:
			removed++
		case !errors.Is(err, record.ErrRunning) && !errors.Is(err, record.ErrNotFound) && !errors.Is(err, ErrPaused):
			return removed, err
		}
	}
	return removed, nil
}

// ErrOwner says that a record belongs to another owner than the one named.
var ErrOwner = errors.New("is another owner's")

// ErrRedacted says that parts of a record's request were redacted.
var ErrRedacted = errors.New("the record can't be run again")

// Recorded returns a request for what a recorded run of an owner was granted. What the run was
// denied is not asked for again, whatever the ceiling is now, and each file or folder must lead
// where it led then. An owner of "" is the user of this process (LocalOwner). Secrets have
// their names only: values are never recorded.
func (rt *Runtime) Recorded(id, owner string) (Request, error) {
	rec, err := rt.recordOf(id, owner)
	if err == nil && rec.Session != "" {
		err = fmt.Errorf("it is of the session %s: run that again, whose steps are then played in order", rec.Session)
	}
	var req Request
	if err == nil {
		req, err = rt.asked(rec)
	}
	if err != nil {
		return Request{}, fmt.Errorf("read the request of %s: %w", id, err)
	}
	return req, nil
}

// recordOf reads an owner's record.
func (rt *Runtime) recordOf(id, owner string) (*record.Record, error) {
	rec, err := rt.runs.Get(id)
	if err != nil {
		return nil, err
	}
	self := LocalOwner(os.Geteuid())
	if owner == "" {
		owner = self
	}
	if rec.Owner != owner && !(rec.Owner == "" && owner == self) { // none in records of an older unitask
		return nil, fmt.Errorf("it %w: %q", ErrOwner, rec.Owner)
	}
	return rec, nil
}

// asked is the request of a record, for what was granted then.
func (rt *Runtime) asked(rec *record.Record) (Request, error) {
	fail := func(err error) (Request, error) { return Request{}, err }
	id := rec.ID
	if len(rec.Redacted) > 0 {
		return fail(fmt.Errorf("%w: it has %s in place of a secret in %s; give the request again", ErrRedacted, record.Redacted, strings.Join(rec.Redacted, ", ")))
	}
	var asked, granted map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(rec.Request, &asked), json.Unmarshal(orNull(rec.Effective), &granted)); err != nil {
		return fail(err)
	}
	for _, f := range policy.Fields { // one form: what was granted takes the place of what was asked
		value, ok := granted[f.Key]
		if !ok {
			return fail(fmt.Errorf("the record does not say what was granted of %s: it is of an older version, or was cut short", f.Key))
		}
		asked[f.Key] = value
	}
	text, err := json.Marshal(asked)
	if err != nil {
		return fail(err)
	}
	var req Request
	if err := json.Unmarshal(text, &req); err != nil {
		return fail(err)
	}
	if rec.CodeFile != "code"+path.Ext(rec.CodeFile) {
		return fail(fmt.Errorf("its code's file can't be %q", rec.CodeFile))
	}
	code, err := os.ReadFile(rt.runs.Path(id, rec.CodeFile))
	if err != nil {
		return fail(err)
	}
	req.Code = string(code)
	if err := rt.recordedNeighbours(id, &req); err != nil {
		return fail(err)
	}
	return req, nil
}

// orNull is a part of a record, null where there is none.
func orNull(part json.RawMessage) json.RawMessage {
	if part == nil {
		return json.RawMessage("null")
	}
	return part
}
