package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/exact"
	"github.com/unitask/unitask/policy"
)

// task is what is to run: a request whose secrets have names only, and what comes with it.
type task struct {
	Request unitask.Request `json:"request"`
	Caller  string          `json:"caller,omitempty"` // of the submitter, for the worker's record
	Colors  string          `json:"colors,omitempty"`
	Stdin   bool            `json:"stdin,omitempty"` // the submitter has a standard input for it
	Files   *blob           `json:"files,omitempty"` // a tar of what it brings, by the paths inside
	// Image is one that the submitter has, a container's or an own one.
	Image *unitask.BroughtImage `json:"image,omitempty"`
}

// report is what came of a run.
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

// readTask reads what a tenant has written.
func readTask(ctx context.Context, s tenantStore, b blob) (t task, err error) {
	text, err := s.read(ctx, b, maxTask)
	if err != nil {
		return t, err
	}
	if err := errors.Join(exact.Members(text, &t), json.Unmarshal(text, &t)); err != nil {
		return t, fmt.Errorf("task: %w: %w", errMalformed, err)
	}
	if len(t.Caller) > 256 || len(t.Colors) > 8 {
		return t, fmt.Errorf("task: %w: its caller's name has %d bytes", errMalformed, len(t.Caller))
	}
	return t, nil
}

// largeTask is the size, in bytes, above which a tenant's tasks are read one after the other: it takes several times as much
// memory of the worker as the task has, before there is room for a run. Other tenants' tasks do not wait for them: what comes may come slowly.
const largeTask = 1 << 20

// readTask reads a task in its turn.
func (l *lane) readTask(ctx context.Context, b blob) (task, error) {
	if b.Size > largeTask {
		select {
		case l.large <- struct{}{}:
			defer func() { <-l.large }()
		case <-ctx.Done():
			return task{}, context.Cause(ctx)
		}
	}
	return readTask(ctx, l.tenantStore, b)
}

// here is the request as a worker runs it: an image that comes along is not the one that has its name here.
func (t task) here(tenant string) unitask.Request {
	req := t.Request
	if t.Image != nil {
		req.Image = t.Image.KeyFor(tenant)
	}
	return req
}

func (t task) put(ctx context.Context, s tenantStore) (blob, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return blob{}, err
	}
	return s.putBytes(ctx, text, true)
}

func readReport(ctx context.Context, s tenantStore, b blob) (r report, err error) {
	text, err := s.read(ctx, b, maxReport)
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(text)).Decode(&r)
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

// Repeatable says whether a run may be made again when its worker is lost: it can't have acted on
// anybody, since it had no network and no secrets. Who asks for more runs once at most.
func Repeatable(req unitask.Request) bool {
	return len(req.AllowNet)+len(req.AllowTCP)+len(req.Secrets) == 0 && !req.AllowNetAny
}

// outcome is what Runtime.Run would return for a report.
func (r report) outcome() (*unitask.Result, error) {
	switch {
	case r.Field != nil:
		return nil, &policy.FieldError{Field: r.Field.Field, Value: r.Field.Value, Reason: r.Field.Reason, Would: r.Field.Would}
	case r.Result == nil:
		return nil, &unitask.HostError{Op: "fleet", Err: errors.New(orText(r.Error, "the worker says nothing of the run"))}
	}
	res := r.Result
	switch res.Outcome {
	case unitask.OutcomeExited, unitask.OutcomeSignaled, unitask.OutcomeTimeout, unitask.OutcomeOOM:
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
