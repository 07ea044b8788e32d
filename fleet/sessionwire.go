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

// Sessions. Only workers write the bucket with the sessions' entries. An entry's revision is the fence: only the
// entry's worker may answer for the session, at the revision that it wrote. Calls are requests to the session's own
// subject, begins to a worker's. A call's inbox gets its output and then the answer.

const (
	sessionsBucket = "unitask-sessions-" // and the tenant

	subjectSession = "unitask.session." // TENANT.SESSION: a call
	subjectBegin   = "unitask.begin."   // TENANT.WORKER: a new session, or a resumed one

	opFiles = "files" // in addition to the session daemon's operations: a list of Path, Count levels deep

	headCancel = "Cancel" // the inbox of an abandoned call
	headAnswer = "Answer"
	headTaken  = "Taken" // the worker has received the call

	maxSessionEntry = 64 << 10 // bytes of a session's entry
	maxSessions     = 4096     // that a client lists
	sessionsBytes   = 64 << 20 // bytes of the bucket
)

// sessionEntry is a session's state.
type sessionEntry struct {
	View     sessiond.View `json:"view"` // State is the daemon's: running, paused
	Worker   string        `json:"worker"`
	Owner    string        `json:"owner,omitempty"` // the submitter's caller
	MemoryMB int           `json:"memoryMb"`
	Key      string        `json:"key"` // the key that seals its pause: keyName
	Pause    *blob         `json:"pause,omitempty"`
	PausedAt time.Time     `json:"pausedAt,omitzero"`
	Secrets  []string      `json:"secrets,omitempty"` // names whose values a resume needs
	Why      string        `json:"why,omitempty"`     // why it has ended
}

// SessionLostError means that a session is lost with its worker.
type SessionLostError struct {
	ID, Worker string
	PausedAt   time.Time // if not zero, Resume resumes from this pause; later work is lost
}

func (e *SessionLostError) Error() string {
	if e.PausedAt.IsZero() {
		return fmt.Sprintf("session %s is lost: its worker %s is gone", e.ID, e.Worker)
	}
	return fmt.Sprintf(
		"session %s is lost: its worker %s is gone; resume it to continue from its pause at %s",
		e.ID,
		e.Worker,
		e.PausedAt.Local().Format(time.DateTime),
	)
}

// call is a request to a worker.
type call struct {
	sessiond.Request
	Caller  string `json:"caller,omitempty"`
	Sealed  []byte `json:"sealed,omitempty"` // secrets, of a begin: to the worker's key
	Content []byte `json:"-"`                // of a write; sent separately, like the code of a step and a value
}

// takeOut removes and returns the part of a call that may be large.
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

// putIn puts back the part that takeOut removed.
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
	Stdout  []byte   `json:"-"` // the whole stream of the result; streams and a value are sent separately
	Stderr  []byte   `json:"-"`
	Content []byte   `json:"-"` // of a read
	Files   []listed `json:"files,omitempty"`
	Other   bool     `json:"other,omitempty"` // another worker may succeed
}

// listed is an entry of a file list.
type listed = unitask.SessionFile

// sessions is a tenant's bucket of sessions.
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

// readSession decodes a session's entry. It returns a *unitask.SessionError if the session is over.
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

// listSessions passes each entry of a tenant's sessions that are not over to a function.
func listSessions(ctx context.Context, js jetstream.JetStream, tenant string, each func(sessionEntry)) error {
	return list(ctx, js, sessionsBucket+tenant, ofSessions, false, func(id string, value []byte) {
		if e, err := readSession(id, value); idForm.MatchString(id) && err == nil {
			each(e)
		}
	})
}

// replace writes an entry in place of a revision, 0 for none. It returns errFenced if the entry has another revision.
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
			bytes.Equal(v.Value(), text) { // written by this worker, which lost the answer
			return v.Revision(), nil
		}
		return 0, errFenced
	}
	return next, err
}
