package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// ErrOwner means that a record belongs to another owner than the named one.
var ErrOwner = errors.New("is another owner's")

// ErrRedacted means that parts of a record's request were redacted.
var ErrRedacted = errors.New("the record can't be run again")

// Request returns a request for the grants of an owner's recorded run. It does not ask again for
// what was denied, whatever the ceiling is now. Each file or folder must lead to the same place as
// then. The owner "" is the user of this process (LocalOwner). Secrets have their names only:
// values are never recorded.
func (h *Store) Request(id, owner string) (run.Request, error) {
	rec, err := h.recordOf(id, owner)
	if err == nil && rec.Session != "" {
		err = fmt.Errorf("it is of the session %s: run that again, whose steps are then played in order", rec.Session)
	}
	var req run.Request
	if err == nil {
		req, err = h.asked(rec)
	}
	if err != nil {
		return run.Request{}, fmt.Errorf("read the request of %s: %w", id, err)
	}
	return req, nil
}

// recordOf reads an owner's record.
func (h *Store) recordOf(id, owner string) (*record.Record, error) {
	rec, err := h.Records.Get(id)
	if err != nil {
		return nil, err
	}
	self := run.LocalOwner(os.Geteuid())
	if owner == "" {
		owner = self
	}
	if rec.Owner != owner && !(rec.Owner == "" && owner == self) { // records of an older unitask have none
		return nil, fmt.Errorf("it %w: %q", ErrOwner, rec.Owner)
	}
	return rec, nil
}

// asked returns a record's request, with the grants of then.
func (h *Store) asked(rec *record.Record) (run.Request, error) {
	fail := func(err error) (run.Request, error) { return run.Request{}, err }
	id := rec.ID
	if len(rec.Redacted) > 0 {
		return fail(fmt.Errorf("%w: it has %s in place of a secret in %s; give the request again", ErrRedacted,
			record.Redacted, strings.Join(rec.Redacted, ", ")))
	}
	var asked, granted map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(rec.Request, &asked),
		json.Unmarshal(orNull(rec.Effective), &granted)); err != nil {
		return fail(err)
	}
	if old, is := asked["neighbours"]; is { // records of before December 2026 have it
		asked["inlineFiles"] = old
		delete(asked, "neighbours")
	}
	for _, f := range policy.Fields { // the grants replace the request's fields, which have the same form
		value, ok := granted[f.Key]
		if !ok {
			return fail(fmt.Errorf("the record does not say what was granted of %s: it is of an older version, or was cut short",
				f.Key))
		}
		asked[f.Key] = value
	}
	text, err := json.Marshal(asked)
	if err != nil {
		return fail(err)
	}
	var req run.Request
	if err := json.Unmarshal(text, &req); err != nil {
		return fail(err)
	}
	if req.Code, err = h.code(rec); err != nil {
		return fail(err)
	}
	if err := h.recordedInlineFiles(id, &req); err != nil {
		return fail(err)
	}
	return req, nil
}

// code returns a record's code.
func (h *Store) code(rec *record.Record) (string, error) {
	if rec.CodeFile != "code"+path.Ext(rec.CodeFile) {
		return "", fmt.Errorf("its code's file can't be %q", rec.CodeFile)
	}
	text, err := os.ReadFile(h.Records.Path(rec.ID, rec.CodeFile))
	return string(text), err
}

// orNull returns a part of a record, or null if it is missing.
func orNull(part json.RawMessage) json.RawMessage {
	if part == nil {
		return json.RawMessage("null")
	}
	return part
}

// recordedInlineFiles restores the contents of a recorded request's inline files.
func (h *Store) recordedInlineFiles(id string, req *run.Request) error {
	if len(req.InlineFiles) == 0 {
		return nil
	}
	text, more, err := h.Records.Read(id, record.InlineFilesFile, 16*run.MaxInlineBytes) // if each byte is escaped
	if err != nil {
		return err
	}
	named := req.InlineFiles
	req.InlineFiles = nil
	if more || json.Unmarshal(text, &req.InlineFiles) != nil || len(req.InlineFiles) != len(named) {
		return errors.New("the files beside its code, in " + record.InlineFilesFile + ", are not as they were")
	}
	for i, n := range named {
		if req.InlineFiles[i].Name != n.Name {
			return fmt.Errorf("the files beside its code are not as they were: %.200q is missing", n.Name)
		}
	}
	return nil
}

// RecordedStep is a step or a command of a recorded session.
type RecordedStep struct {
	ID         string
	Code       string // of a step
	Language   string
	Args       []string // of a command
	Dir        string
	Env        map[string]string
	Background bool
	Timeout    time.Duration
	// Ended is the recorded result, or nil if the session's process ended before the step did.
	Ended *run.Result
}

// Session returns a request for the grants of an owner's recorded session, and its steps in the order of their starts;
// both as Request does. The record has neither files that were copied in nor values.
func (h *Store) Session(id, owner string) (run.Request, []RecordedStep, error) {
	rec, err := h.recordOf(id, owner)
	if err == nil && rec.Session != id {
		err = errors.New("it is no session's own record")
	}
	if err == nil && rec.Root {
		err = errors.New("its code could become its machine's root, which a record does not grant again")
	}
	if err == nil && rec.Parent != "" {
		err = fmt.Errorf("it is a fork of %s: what it went on from can't be made again", rec.Parent)
	}
	fail := func(err error) (run.Request, []RecordedStep, error) {
		return run.Request{}, nil, fmt.Errorf("read the session %s: %w", id, err)
	}
	if err != nil {
		return fail(err)
	}
	req, err := h.asked(rec)
	if err != nil {
		return fail(err)
	}
	req.Path, req.Dir = "", ""   // a session has its own
	if req.Kernel != run.Nanos { // sessions on nanos name it
		req.Kernel = ""
	}
	ids, err := h.Records.IDs()
	if err != nil {
		return fail(err)
	}
	var steps []RecordedStep
	for _, at := range ids {
		if at <= id {
			continue
		}
		one, err := h.Records.Get(at)
		if err != nil || one.Session != id { // of another session
			continue
		}
		step, err := h.recordedStep(one)
		if err != nil {
			return fail(fmt.Errorf("step %s: %w", at, err))
		}
		steps = append(steps, step)
	}
	return req, steps, nil
}

func (h *Store) recordedStep(rec *record.Record) (RecordedStep, error) {
	if len(rec.Redacted) > 0 {
		return RecordedStep{}, fmt.Errorf("%w: it has %s in place of a secret in %s", ErrRedacted, record.Redacted,
			strings.Join(rec.Redacted, ", "))
	}
	var req run.Request
	var eff policy.Effective
	if err := errors.Join(json.Unmarshal(rec.Request, &req), json.Unmarshal(orNull(rec.Effective), &eff)); err != nil {
		return RecordedStep{}, err
	}
	if len(req.Args) == 0 && req.Code == "" { // records of an older unitask have it in the request
		code, err := h.code(rec)
		if err != nil {
			return RecordedStep{}, err
		}
		req.Code = code
	}
	s := RecordedStep{ID: rec.ID, Code: req.Code, Language: req.Language, Args: req.Args, Dir: req.Dir, Env: req.Env,
		Background: rec.Background, Timeout: eff.Timeout}
	var ended run.Result
	if rec.Result != nil && json.Unmarshal(rec.Result, &ended) == nil {
		s.Ended = &ended
	}
	return s, nil
}
