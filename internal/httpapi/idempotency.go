package httpapi

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/record"
)

// An operation whose description has the header Idempotency-Key runs once for each key of a caller (once). What it
// answered is stored for a day (keys.go), also for the next server.

// keyHeader is the header with a client's key, and replayedHeader marks an answer to an earlier request.
const keyHeader, replayedHeader = "Idempotency-Key", "Idempotency-Replayed"

// once carries out a call with a key. The call continues if its client disconnects. If an earlier call had the key, it
// joins that one, or returns what it answered.
func (s *Server) once(c *call, op *described, key string, do operation) (*answer, error) {
	done, err := s.shared.Begin() // also for the file
	if err != nil {
		return nil, err
	}
	defer done()
	request := digest(op.ID, c.r.URL.EscapedPath(), c.r.URL.Query().Encode(), c.digest)
	k, first := s.keys.begin(home.Dir(s.rt.Images().Home()).Idempotency(), c.caller.Name, key, request)
	if !first {
		select {
		case <-k.done:
			return s.replay(c, op, k, request)
		case <-c.r.Context().Done():
			return nil, context.Cause(c.r.Context())
		}
	}
	defer k.close()
	if err := k.load(); err != nil {
		k.refused = problemOf(s.shared.Hide(c.caller, err))
		return nil, k.refused
	}
	if k.found {
		return s.replay(c, op, k, request)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.r.Context()))
	defer cancel(nil)
	defer context.AfterFunc(s.shared.Context(), func() { cancel(unitask.ErrClosed) })()
	c.r, c.key = c.r.WithContext(ctx), k
	got, err := do(c)
	switch {
	case err != nil:
		p := problemOf(s.shared.Hide(c.caller, err))
		k.failed(p)
		return nil, p
	case got != nil: // else it was a stream, which is not stored
		k.answered(got)
	}
	return got, nil
}

// replay answers as the first call with a key did.
func (s *Server) replay(c *call, op *described, k *keyed, request string) (*answer, error) {
	stored := k.stored
	switch {
	case stored.Request != request:
		return nil, &Problem{Status: http.StatusUnprocessableEntity, Code: "idempotency.mismatch",
			Detail: "another request had this " + keyHeader, Remedy: "send another key with another request"}
	case k.refused != nil:
		return nil, k.refused
	case stored.Status >= http.StatusBadRequest:
		p := new(Problem)
		if json.Unmarshal(stored.Body, p) == nil {
			c.w.Header().Set(replayedHeader, "true")
			return nil, p
		}
	case stored.Status != 0:
		if err := s.shared.Draw(c.r.Context(), int64(len(stored.Body))); err != nil {
			return nil, err
		}
		got := &answer{Status: stored.Status, Header: stored.Header.Clone()}
		if stored.Body != nil {
			got.Body = stored.Body
		}
		return replayed(got), nil
	case op.ID == "createRun" && stored.ID != "":
		if got, err := s.replayRun(c, stored.ID); got != nil || err != nil {
			return replayed(got), err
		}
	}
	p := &Problem{Status: http.StatusConflict, Code: "unknown",
		Detail: "an earlier request with this key began, and what became of it is not known",
		Remedy: "look whether it has had effects; another key begins it again"}
	if stored.ID != "" {
		p.Detail += ": it is " + stored.ID
	}
	return nil, p
}

func replayed(got *answer) *answer {
	if got == nil {
		return nil
	}
	if got.Header == nil {
		got.Header = http.Header{}
	}
	got.Header.Set(replayedHeader, "true")
	return got
}

// replayRun answers with the result of a run whose answer is not stored, nil if it has none.
func (s *Server) replayRun(c *call, id string) (*answer, error) {
	rec, err := s.recordOf(c, id)
	switch {
	case err != nil:
		return nil, err
	case !c.is("wait", true):
		return &answer{Status: http.StatusAccepted, Header: http.Header{"Location": {"/v1/runs/" + id}},
			Body: runState{id, rec.Status}}, nil
	case rec.Status == record.Running || rec.Result == nil:
		return nil, nil
	}
	return s.resultAnswer(c, rec)
}
