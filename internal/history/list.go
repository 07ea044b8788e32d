// Package history writes the record of a run, and reads records: lists, one run with its files, and requests that
// repeat a run. It runs nothing. The engine and sessions write; the front ends read.
package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Store reads and writes a home's records.
type Store struct {
	Records  *record.Store
	Home     string
	MaxBytes int64 // of all records together; 0 is record.DefaultStoreBytes, -1 no bound
}

// Summary describes a recorded run in brief.
type Summary struct {
	ID       string        `json:"id"`
	Created  time.Time     `json:"created"`
	Status   record.Status `json:"status"`
	Owner    string        `json:"owner,omitempty"`
	Via      record.Via    `json:"via,omitempty"`
	Outcome  run.Outcome   `json:"outcome,omitempty"`
	ExitCode *int          `json:"exitCode,omitempty"`
	TotalMs  int64         `json:"durationMs,omitempty"`
	Kernel   string        `json:"kernel,omitempty"`
	Denials  int           `json:"denials"`
	Code     string        `json:"code"` // its first line
	Error    string        `json:"error,omitempty"`

	gone bool // the record was removed
}

// State returns the outcome if there is one, else the record's status.
func (s Summary) State() string {
	if s.Outcome != "" {
		return string(s.Outcome)
	}
	return string(s.Status)
}

// Unreadable is the status of a record that can't be parsed.
const Unreadable record.Status = "unreadable"

// states lists the values of State, and the statuses of records that outcomes hide.
var states = []string{string(run.OutcomeExited), string(run.OutcomeSignaled), string(run.OutcomeTimeout),
	string(run.OutcomeOOM), string(run.OutcomeUndelivered), string(run.OutcomeCancelled), string(run.OutcomeCrashed),
	string(run.OutcomeFailed), string(run.OutcomeBusy), string(run.OutcomeLost),
	string(record.Running), string(record.Paused), string(record.Interrupted), string(record.Done), string(Unreadable)}

// States returns the values of a Filter's Status: outcomes, and the statuses of records without an outcome.
func States() []string { return slices.Clone(states) }

// ErrState means that a Filter's status is unknown.
var ErrState = errors.New("use one of " + strings.Join(states, ", "))

// Filter selects runs; the zero value selects all.
type Filter struct {
	Status string    // an outcome or a record's status
	Since  time.Time // not created before
	Limit  int       // at most this many; 0 is all
	Before string    // with ids before this one, which are older
	Owner  string    // of this owner, made through one of Via; "" means everybody
	Via    []record.Via
	Looked int // at most this many records are read; 0 means all
}

// List lists recorded runs, the newest first. The error is ErrState if the filter's status is unknown.
func (h *Store) List(f Filter) ([]Summary, error) {
	list, _, err := h.Page(f)
	return list, err
}

// Page is like List, and also returns the Before of the next page, "" if there is none.
func (h *Store) Page(f Filter) (list []Summary, next string, err error) {
	if f.Status != "" && !slices.Contains(states, f.Status) {
		return nil, "", fmt.Errorf("status %.80q: %w", f.Status, ErrState)
	}
	list = []Summary{}
	looked, last := 0, ""
	for id, err := range h.ids(f) {
		if err != nil {
			return nil, "", err
		}
		if f.Limit > 0 && len(list) == f.Limit || f.Looked > 0 && looked == f.Looked {
			return list, last, nil
		}
		looked, last = looked+1, id
		s := h.summary(id)
		if f.Owner != "" && s.gone {
			h.Records.Gone(f.Owner, f.Via, id)
			continue
		}
		if s.Created.Before(f.Since) ||
			f.Owner != "" && !(s.Owner == f.Owner && slices.Contains(f.Via, s.Via)) {
			continue
		}
		if f.Status == "" || f.Status == s.State() || f.Status == string(s.Status) {
			list = append(list, s)
		}
	}
	return list, "", nil
}

// ids returns the ids that a filter selects, the newest first.
func (h *Store) ids(f Filter) iter.Seq2[string, error] {
	if f.Owner != "" {
		return h.Records.Own(f.Owner, f.Via, f.Before, "")
	}
	return func(yield func(string, error) bool) {
		ids, err := h.Records.IDs()
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

// summary reads a run's record. A record that can't be read is listed as such, with the time in its id.
func (h *Store) summary(id string) Summary {
	s := Summary{ID: id}
	rec, err := h.Records.Get(id)
	if err != nil {
		s.Status, s.Error, s.gone = Unreadable, err.Error(), errors.Is(err, record.ErrNotFound)
		s.Created, _ = record.CreatedAt(id)
		return s
	}
	s.Created, s.Status, s.Owner, s.Via, s.Error = rec.Created, rec.Status, rec.Owner, rec.Via, rec.Error
	var res run.Result
	if rec.Result != nil && json.Unmarshal(rec.Result, &res) == nil {
		s.Outcome, s.ExitCode, s.TotalMs, s.Kernel = res.Outcome, &res.ExitCode, res.Duration.Total.Milliseconds(),
			string(res.Kernel)
	}
	var denials []json.RawMessage
	if rec.Denials != nil && json.Unmarshal(rec.Denials, &denials) == nil {
		s.Denials = len(denials)
	}
	text, _, _ := h.Records.Read(id, rec.CodeFile, 400)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(strings.ToValidUTF8(line, "")); line != "" {
			s.Code = line
			break
		}
	}
	return s
}

// ErrPaused means that a record belongs to a paused session, whose machine is on the disk.
var ErrPaused = errors.New("the session is paused")

// Remove removes a run's record. The error is record.ErrRunning for a current run, and ErrPaused for a paused session,
// which continues with its record.
func (h *Store) Remove(id string) error {
	paused, err := paused.Open(h.Home).IDs()
	if err != nil {
		return failure.Host("record", err)
	}
	if slices.Contains(paused, id) && !h.Records.Held(id) {
		return fmt.Errorf("%w: %s: end it first (unitask session rm)", ErrPaused, id)
	}
	return h.Records.Remove(id)
}

// beingMade bounds the time until a new record can be read.
const beingMade = time.Minute

// Prune removes the records that are older than age, except the newest keep, those of current runs and those of
// sessions that are paused. It returns how many it removed.
func (h *Store) Prune(keep int, age time.Duration) (removed int, err error) {
	all, err := h.List(Filter{})
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
		switch err := h.Remove(run.ID); {
		case err == nil:
			removed++
		case !errors.Is(err, record.ErrRunning) && !errors.Is(err, record.ErrNotFound) && !errors.Is(err, ErrPaused):
			return removed, err
		}
	}
	return removed, nil
}
