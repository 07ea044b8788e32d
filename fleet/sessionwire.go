package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/sessiond"
)

// Sessions. A session's entry is in a bucket that workers alone write; its revision is the fence: who may answer
// for it is the worker of the entry, at the revision that it wrote. Calls are requests to the session's own
// subject, begins to a worker's; what a call prints comes to its inbox, and then the answer.

const (
	sessionsBucket = "unitask-sessions-" // and the tenant

	subjectSession = "unitask.session." // TENANT.SESSION: a call
	subjectBegin   = "unitask.begin."   // TENANT.WORKER: a new session, or one that continues

	opFiles = "files" // beside the session daemon's operations: a list of Path, Count levels deep

	headCancel = "Cancel" // the inbox of a call that nobody waits for any more
	headAnswer = "Answer"
	headTaken  = "Taken" // the worker has the call

	maxSessionEntry = 64 << 10
	maxSessions     = 4096 // that a client lists
	sessionsBytes   = 64 << 20
)

// sessionEntry is a session's state.
type sessionEntry struct {
	View     sessiond.View `json:"view"` // State is the daemon's: running, paused
	Worker   string        `json:"worker"`
	Owner    string        `json:"owner,omitempty"` // the submitter's caller
	MemoryMB int           `json:"memoryMb"`
	Key      string        `json:"key"` // its pause is sealed to: keyName
	Pause    *blob         `json:"pause,omitempty"`
	PausedAt time.Time     `json:"pausedAt,omitzero"`
	Secrets  []string      `json:"secrets,omitempty"` // that going on takes the values of
	Why      string        `json:"why,omitempty"`     // it has ended
}

// SessionLostError means that a session's worker is gone, and the session with it.
type SessionLostError struct {
	ID, Worker string
	PausedAt   time.Time // if not zero, Resume continues from this pause; what it did since then is lost
}

func (e *SessionLostError) Error() string {
	if e.PausedAt.IsZero() {
		return fmt.Sprintf("session %s is lost: its worker %s is gone", e.ID, e.Worker)
	}
	return fmt.Sprintf(
		"session %s is lost: its worker %s is gone; resume it to go on from its pause at %s",
		e.ID,
		e.Worker,
		e.PausedAt.Local().Format(time.DateTime),
	)
}

// call is what is asked of a worker.
type call struct {
	sessiond.Request
	Caller  string `json:"caller,omitempty"`
	Sealed  []byte `json:"sealed,omitempty"` // secrets, of a begin: to the worker's key
	Content []byte `json:"-"`                // of a write; it is sent apart, as the code of a step and a value are
}

// takeOut takes what may be large out of a call.
func (c *call) takeOut() []byte {
	content := c.Content
	switch {
	case c.Op == sessiond.OpRun && c.Step != nil:
		step := *c.Step
		content, step.Code = []byte(step.Code), ""
		c.Step = &step
	case c.Op == sessiond.OpPut:
		content, c.Value = c.Value, nil
	}
	return content
}

// putIn puts it back.
func (c *call) putIn(content []byte) {
	switch {
	case c.Op == sessiond.OpRun && c.Step != nil:
		c.Step.Code = string(content)
	case c.Op == sessiond.OpPut:
		c.Value = content
	default:
		c.Content = content
	}
}

// reply is a worker's answer.
type reply struct {
	sessiond.Answer
	Stdout  []byte   `json:"-"` // all of the result's; these are sent apart, and so is a value
	Stderr  []byte   `json:"-"`
	Content []byte   `json:"-"` // of a read
	Files   []listed `json:"files,omitempty"`
	Other   bool     `json:"other,omitempty"` // another worker may be able to
}

// listed is a file of a list.
type listed = unitask.SessionFile

// sessions is the tenant's bucket of them.
type sessions struct {
	kv jetstream.KeyValue
}

func openSessions(ctx context.Context, js jetstream.JetStream, tenant string) (sessions, error) {
	kv, err := js.KeyValue(ctx, sessionsBucket+tenant)
	return sessions{kv}, err
}

func makeSessions(ctx context.Context, js jetstream.JetStream, tenant string, replicas int) (sessions, error) {
	name := sessionsBucket + tenant
	replicas, err := atLeast(ctx, js, "KV_"+name, replicas)
	if err != nil {
		return sessions{}, fmt.Errorf("make the sessions of tenant %s: %w", tenant, err)
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:              "KV_" + name,
		Subjects:          []string{"$KV." + name + ".>"},
		MaxMsgsPerSubject: 1,
		MaxAge:            keep,
		MaxBytes:          sessionsBytes,
		MaxMsgSize:        maxSessionEntry,
		DenyDelete:        true,
		Duplicates:        2 * time.Minute,
		Discard:           jetstream.DiscardNew,
		AllowRollup:       true,
		Replicas:          replicas,
	})
	if err != nil {
		return sessions{}, fmt.Errorf("make the sessions of tenant %s: %w", tenant, err)
	}
	return openSessions(ctx, js, tenant)
}

func (s sessions) get(ctx context.Context, id string) (e sessionEntry, revision uint64, err error) {
	if !idForm.MatchString(id) {
		return e, 0, &unitask.SessionError{ID: fmt.Sprintf("%.80q", id), Why: "or never was"}
	}
	v, err := s.kv.Get(ctx, id)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return e, 0, &unitask.SessionError{ID: id, Why: "or never was"}
	}
	if err != nil {
		return e, 0, err
	}
	if e, err = readSession(id, v.Value()); errors.Is(err, errMalformed) {
		return e, 0, err
	}
	return e, v.Revision(), err
}

// readSession reads a session's entry; a *unitask.SessionError says that it is over.
func readSession(id string, value []byte) (e sessionEntry, err error) {
	if len(value) > maxSessionEntry || decode(value, maxValues, &e) != nil || e.View.ID != id || e.MemoryMB < 1 ||
		!boundView(&e.View, nil) || e.Worker != "" && !idForm.MatchString(e.Worker) {
		return e, fmt.Errorf("session %s: %w entry", id, errMalformed)
	}
	if e.Why != "" {
		return e, &unitask.SessionError{ID: id, Why: bounded.Text(e.Why, history.MaxSaidError)}
	}
	if e.View.State == sessiond.Paused && !time.Now().Before(e.View.ExpiresAt) {
		return e, &unitask.SessionError{ID: id, Why: "its life was over"}
	}
	return e, nil
}

// listSessions hands on the entries of a tenant's sessions that are not over.
func listSessions(ctx context.Context, js jetstream.JetStream, tenant string, each func(sessionEntry)) error {
	return list(ctx, js, sessionsBucket+tenant, ofSessions, false, func(id string, value []byte) {
		if e, err := readSession(id, value); idForm.MatchString(id) && err == nil {
			each(e)
		}
	})
}

// replace writes an entry in the place of that revision, 0 being none; errFenced says that it has another one.
func (s sessions) replace(ctx context.Context, e sessionEntry, revision uint64) (uint64, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	next, err := s.kv.Update(ctx, e.View.ID, text, revision)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		if v, e := s.kv.Get(
			ctx,
			e.View.ID,
		); e == nil &&
			bytes.Equal(v.Value(), text) { // by ourselves, whose answer was lost
			return v.Revision(), nil
		}
		return 0, errFenced
	}
	return next, err
}
