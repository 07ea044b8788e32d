package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/exact"
	"github.com/unitask/unitask/internal/nesting"
	"github.com/unitask/unitask/policy"
)

// task is a request to run, without the values of secrets, and everything that belongs to it. Large code is separate
// (entry.Code).
type task struct {
	Request unitask.Request `json:"request"`
	Code    []int64         `json:"code,omitempty"`   // bytes of the code and of each inline file in entry.Code
	Caller  string          `json:"caller,omitempty"` // of the submitter, for the worker's record
	Colors  string          `json:"colors,omitempty"`
	Stdin   bool            `json:"stdin,omitempty"` // the submitter has a standard input for it
	Files   *blob           `json:"files,omitempty"` // a tar of the run's files, with their paths in the machine
	// Image is a container image or a custom image of the submitter.
	Image *catalog.Shipped `json:"image,omitempty"`
}

// report is the outcome of a run.
type report struct {
	Result  *unitask.Result `json:"result,omitempty"` // without its streams
	Field   *fieldError     `json:"field,omitempty"`  // a field of the request is invalid
	Error   string          `json:"error,omitempty"`  // there is no result
	Machine json.RawMessage `json:"machine,omitempty"`
	Stdout  int64           `json:"stdout"` // bytes of the streams
	Stderr  int64           `json:"stderr"`
	// Left is a tar of stdout, stderr, netlog, console and out/…
	Left blob `json:"left"`
}

type fieldError struct {
	Field, Value, Reason string
	Would                map[string]int64 `json:",omitempty"`
}

// Limits of JSON from others, checked before decoding: a few bytes of JSON may become hundreds in memory.
const (
	maxNested       = 16     // levels of nested brackets
	maxValues       = 20_000 // of a task or a call
	maxReportValues = 100_000
)

// decode decodes untrusted JSON into v.
func decode(text []byte, values int, v any) error {
	if err := nesting.Check(text, maxNested, values); err != nil {
		return fmt.Errorf("%w: it %w", errMalformed, err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return nil
}

// readTask reads a tenant's task without its code.
func readTask(ctx context.Context, s tenantStore, b blob) (t task, err error) {
	text, err := s.read(ctx, b, maxTask)
	if err != nil {
		return t, err
	}
	if err = nesting.Check(text, maxNested, maxValues); err == nil {
		err = exact.Members(text, &t)
	}
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	if err != nil {
		return t, fmt.Errorf("task: %w: %w", errMalformed, err)
	}
	if len(t.Caller) > 256 || len(t.Colors) > 8 {
		return t, fmt.Errorf("task: %w: its caller's name has %d bytes", errMalformed, len(t.Caller))
	}
	return t, nil
}

// takeOut removes the code and its inline files from a task if they are large; nil means that they stay.
func (t *task) takeOut() (code joined) {
	list, size := codeOf(&t.Request), 0
	for _, text := range list {
		size += len(*text)
	}
	if size <= maxInline {
		return nil
	}
	t.Request.InlineFiles = slices.Clone(t.Request.InlineFiles) // the caller's files stay unchanged
	list = codeOf(&t.Request)
	t.Code = nil
	for _, text := range list {
		t.Code = append(t.Code, int64(len(*text)))
		code = append(code, strings.NewReader(*text))
		*text = ""
	}
	return code
}

// putIn reads the code back into the task. Each text is allocated in one piece.
func (t *task) putIn(ctx context.Context, s tenantStore, b *blob) error {
	if b == nil {
		return nil
	}
	list, left := codeOf(&t.Request), b.Size
	if len(list) != len(t.Code) {
		return fmt.Errorf("task: %w: it has %d texts, and %d sizes", errMalformed, len(list), len(t.Code))
	}
	for _, n := range t.Code {
		if left -= n; n < 0 || left < 0 {
			return fmt.Errorf("task: %w: the sizes of its texts", errMalformed)
		}
	}
	from, err := s.open(ctx, *b, maxCode)
	if err != nil {
		return err
	}
	defer from.Close()
	for i, text := range list {
		var into strings.Builder
		into.Grow(int(t.Code[i]))
		if _, err := io.CopyN(&into, inTime{ctx, from}, t.Code[i]); err != nil {
			return err
		}
		*text = into.String()
	}
	_, err = io.Copy(io.Discard, inTime{ctx, from}) // to the end, where the checksum is verified
	return err
}

// codeOf returns the texts of a request that may be large.
func codeOf(req *unitask.Request) (list []*string) {
	list = append(list, &req.Code)
	for i := range req.InlineFiles {
		list = append(list, &req.InlineFiles[i].Content)
	}
	return list
}

// here returns the request as the worker runs it, with a shipped image under its key: its name may mean another image
// here.
func (t task) here(tenant string) unitask.Request {
	req := t.Request
	if t.Image != nil {
		req.Image = t.Image.KeyFor(tenant)
	}
	return req
}

func (t task) put(ctx context.Context, s tenantStore) (blob, error) {
	text, err := json.Marshal(t)
	if err == nil && len(text) > maxTask {
		err = fmt.Errorf("the request has %d bytes beside its code, and a fleet takes %d: bring large ones as files",
			len(text), maxTask)
	}
	if err == nil {
		err = nesting.Check(text, maxNested, maxValues)
	}
	if err != nil {
		return blob{}, err
	}
	return s.putBytes(ctx, text, true)
}

func readReport(ctx context.Context, s tenantStore, b blob) (r report, err error) {
	text, err := s.read(ctx, b, maxReport)
	if err == nil {
		err = decode(text, maxReportValues, &r)
	}
	return r, err
}

func (r report) put(ctx context.Context, s tenantStore) (*blob, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	b, err := s.putBytes(ctx, text, true)
	return &b, err
}

// Repeatable reports whether a run may be repeated when its worker is lost: without network and secrets it had no
// effect outside. Other runs are executed at most once.
func Repeatable(req unitask.Request) bool {
	return len(req.Secrets) == 0 && !policy.Reaches(req)
}

// outcome converts a report into the results of Runtime.Run.
func (r report) outcome() (*unitask.Result, error) {
	switch {
	case r.Field != nil:
		return nil, &policy.FieldError{Field: r.Field.Field, Value: r.Field.Value, Reason: r.Field.Reason,
			Would: r.Field.Would}
	case r.Result == nil:
		return nil, &unitask.HostError{Op: "fleet", Err: errors.New(orText(r.Error, "the worker says nothing of the run"))}
	}
	res := r.Result
	switch res.Outcome {
	case unitask.OutcomeExited, unitask.OutcomeSignaled, unitask.OutcomeTimeout, unitask.OutcomeOOM,
		unitask.OutcomeUndelivered:
		return res, nil
	case unitask.OutcomeCrashed:
		return res, &unitask.GuestError{Reason: res.Error}
	case unitask.OutcomeCancelled:
		return res, context.Canceled
	}
	return res, &unitask.HostError{Op: "fleet", Err: errors.New(orText(res.Error, "the worker failed"))}
}

func orText(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
