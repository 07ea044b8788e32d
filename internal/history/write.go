package history

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"time"

	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// NamesOnly returns inline files without their contents, for a record's request: listing runs reads it.
func NamesOnly(list []run.InlineFile) (names []run.InlineFile) {
	for _, n := range list {
		names = append(names, run.InlineFile{Name: n.Name})
	}
	return names
}

// writeInlineFiles writes inline files into a record, and reports whether they contained a secret.
func writeInlineFiles(rec *record.Run, list []run.InlineFile, redactor *record.Redactor) (redacted bool, err error) {
	if len(list) == 0 {
		return false, nil
	}
	text, found := redactor.Marshal(list)
	return len(found) > 0, os.WriteFile(path.Join(rec.Dir(), record.InlineFilesFile), text, 0o600)
}

// NetlogSchema is the version of a netlog's lines. It grows if a member changes its meaning or is
// removed; new members do not change it.
const NetlogSchema = 1

// NetlogLine is a line of a record's netlog. It names its run, so lines of many runs can be in one place.
type NetlogLine struct {
	Schema int    `json:"schema"`
	Run    string `json:"run"`
	Caller string `json:"caller,omitempty"`
	Worker string `json:"worker,omitempty"` // that reported the line
	netstack.Decision
}

// Begin makes a run's record with the request and the grants, before anything runs. session is the session of a step,
// "" for other runs.
func (h *Store) Begin(at time.Time, caller run.Caller, session, name string, req, wanted run.Request,
	granted run.Policy, redactor *record.Redactor) (*record.Run, error) {
	wanted.Code, wanted.InlineFiles = "", NamesOnly(wanted.InlineFiles) // they are in separate files
	request, redacted := redactor.Marshal(wanted)
	text := redactor.String(req.Code)
	if text != req.Code {
		redacted = append(redacted, "code")
	}
	rec, err := h.Records.Create(at, caller.Name, caller.Via, name, []byte(text), request)
	if err != nil {
		return nil, failure.Host("record", fmt.Errorf("%w: UNITASK_HOME is %s", err, h.Home))
	}
	secret, err := writeInlineFiles(rec, req.InlineFiles, redactor)
	if err != nil {
		return nil, errors.Join(failure.Host("record", err), rec.Finish(time.Now()))
	}
	if secret && !slices.Contains(redacted, "inlineFiles") {
		redacted = append(redacted, "inlineFiles")
	}
	if rec.Redacted = redacted; len(redacted) > 0 {
		redactor.Known()
	}
	rec.Session = session
	rec.Effective, _ = redactor.Marshal(granted.Effective) // a replay asks for that, however this run ends
	rec.Denials, _ = redactor.Marshal(granted.Denials)
	if err := rec.Update(); err != nil {
		return nil, errors.Join(failure.Host("record", err), rec.Finish(time.Now()))
	}
	return rec, nil
}

// Bound keeps the store of runs within its bound. Its failure is not a failure of the run that
// has just ended.
func (h *Store) Bound(ended string, tell func(run.Event)) {
	if h.MaxBytes < 0 {
		return
	}
	freed, err := h.Records.Bound(ended, cmp.Or(h.MaxBytes, record.DefaultStoreBytes))
	switch {
	case err != nil:
		tell(run.Event{Kind: run.EventStore, Message: err.Error()})
	case freed != record.Freed{}:
		tell(run.Event{Kind: run.EventStore, Message: freed.String()})
	}
}

// Finish completes the record.
func Finish(rec *record.Run, redactor *record.Redactor, res *run.Result) error {
	rec.Status = record.Done
	if res.Outcome == run.OutcomeFailed {
		rec.Status = record.Failed
	}
	rec.Error = res.Error
	brief := *res
	brief.Stdout, brief.Stderr = nil, nil // they are in separate files
	rec.Result, _ = redactor.Marshal(brief)
	return rec.Finish(time.Now())
}
