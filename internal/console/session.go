package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

const (
	shownSteps = 40  // of a session, the newest
	lookedFor  = 500 // records that are read to find them
	stepBytes  = 8 << 10
	nameBytes  = 100 // of a session's id or name
	waiting    = 16  // steps of this console that wait for their end
	// stepTime is how long a step's form waits: a short step has then ended.
	stepTime = 700 * time.Millisecond
)

// acts are the buttons of sessions.
var acts = map[string]string{"end": sessiond.OpEnd, "pause": sessiond.OpPause, "resume": sessiond.OpResume,
	"fork": sessiond.OpFork, "extend": sessiond.OpExtend}

// at is the page of a session.
func at(session string) string { return "session?id=" + url.QueryEscape(session) }

// act does what a session's button says.
func (c *Console) act(w http.ResponseWriter, r *http.Request) {
	within(w, actionTime)
	ctx, cancel := context.WithTimeout(r.Context(), actionTime-answerTime)
	defer cancel()
	req := sessiond.Request{Op: acts[r.PostForm.Get("do")], Session: r.PostForm.Get("session")}
	switch req.Op {
	case "":
		c.wrong(w, r, http.StatusBadRequest, errors.New("do: use one of the page's buttons"))
		return
	case sessiond.OpFork:
		req.Count = 1
	case sessiond.OpExtend:
		minutes, err := number(r, "minutes")
		if err != nil || minutes == 0 {
			c.wrong(w, r, http.StatusBadRequest, errors.New("minutes: want a number above 0"))
			return
		}
		req.LifeMS = policy.Millis(time.Duration(minutes) * time.Minute)
	}
	answer, err := c.Sessions(ctx, req, sessiond.Streams{})
	switch {
	case err != nil:
		c.wrong(w, r, http.StatusConflict, err)
	case req.Op == sessiond.OpEnd:
		c.to(w, r, "live")
	case req.Op == sessiond.OpFork && len(answer.Sessions) > 0:
		c.to(w, r, at(answer.Sessions[0].ID))
	default:
		c.to(w, r, at(req.Session))
	}
}

// begin starts a session under the home's ceiling.
func (c *Console) begin(w http.ResponseWriter, r *http.Request) {
	within(w, actionTime)
	ctx, cancel := context.WithTimeout(r.Context(), actionTime-answerTime)
	defer cancel()
	image := r.PostForm.Get("image")
	if !slices.Contains(sessionImages(), image) {
		c.wrong(w, r, http.StatusBadRequest, fmt.Errorf("image: %.40q is none of the page's", image))
		return
	}
	held, err := c.Policy()
	if err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	asked := &sessiond.New{Name: strings.TrimSpace(r.PostForm.Get("name")), Request: unitask.Request{Image: image},
		Ceiling: held.Origin, Held: held.Ceiling}
	answer, err := c.Sessions(ctx, sessiond.Request{Op: sessiond.OpNew, New: asked}, sessiond.Streams{})
	if err == nil && len(answer.Sessions) == 0 {
		err = errors.New("no session has started")
	}
	if err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	c.to(w, r, at(answer.Sessions[0].ID))
}

// step runs code in a session. A longer step continues, and the session's page follows it.
func (c *Console) step(w http.ResponseWriter, r *http.Request) {
	id := r.PostForm.Get("session")
	code := strings.ReplaceAll(r.PostForm.Get("code"), "\r\n", "\n")
	if strings.TrimSpace(code) == "" || len(id) > nameBytes { // it is kept
		c.wrong(w, r, http.StatusBadRequest, errors.New("code: there is none, or the session's name is none"))
		return
	}
	c.mu.Lock()
	if c.steps >= waiting || c.ctx.Err() != nil {
		c.mu.Unlock()
		c.wrong(w, r, http.StatusServiceUnavailable, fmt.Errorf("%d steps of this console have not ended", waiting))
		return
	}
	c.steps++
	delete(c.failed, id)
	c.going.Add(1)
	c.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		defer c.going.Done()
		_, err := c.Sessions(c.ctx, sessiond.Request{Op: sessiond.OpRun, Session: id, Step: &sessiond.Step{Code: code}},
			sessiond.Streams{Stdout: io.Discard, Stderr: io.Discard})
		c.mu.Lock()
		c.steps--
		if err != nil {
			if len(c.failed) > liveMost {
				clear(c.failed)
			}
			c.failed[id] = err.Error()
		}
		c.mu.Unlock()
		done <- err
	}()
	select {
	case <-done:
	case <-time.After(stepTime):
	case <-r.Context().Done():
	}
	c.to(w, r, at(id))
}

// shownStep is a step of a session, or a command in it.
type shownStep struct {
	*history.Inspection
	Live bool
}

func (c *Console) session(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	list, err := c.sessions(r)
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	is := func(s liveSession) bool { return id != "" && (s.ID == id || s.Name == id) }
	at := slices.IndexFunc(list, is)
	data := map[string]any{"Images": sessionImages()}
	if at >= 0 {
		id = list[at].ID
		data["Session"] = list[at]
	}
	rec, err := c.History.Records.Get(id)
	if err != nil || rec.Session != rec.ID || rec.Owner != unitask.LocalOwner(os.Geteuid()) {
		c.wrong(w, r, http.StatusNotFound, fmt.Errorf("%.80q is no session of yours", id))
		return
	}
	data["Record"] = rec
	data["Forks"] = slices.DeleteFunc(slices.Clone(list), func(s liveSession) bool { return s.Parent != id })
	steps, more, err := c.stepsOf(id)
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	data["Steps"], data["More"] = steps, more
	c.mu.Lock()
	data["Failed"] = c.failed[id]
	c.mu.Unlock()
	if edit := r.URL.Query().Get("edit"); slices.ContainsFunc(steps, func(s shownStep) bool { return s.ID == edit }) {
		in, err := c.History.Inspect(edit, codeBytes)
		if err != nil {
			c.wrong(w, r, http.StatusInternalServerError, err)
			return
		}
		data["Code"], data["Listed"] = in.Code, true // a page that follows would lose what is typed
	}
	if look := inside[r.URL.Query().Get("show")]; look != nil && at >= 0 {
		within(w, actionTime) // it may resume
		ctx, cancel := context.WithTimeout(r.Context(), actionTime-answerTime)
		defer cancel()
		if err := look(c, ctx, id, data); err != nil {
			c.wrong(w, r, http.StatusConflict, err)
			return
		}
		data["Listed"] = true
	}
	c.show(w, r, "session.html", data)
}

// stepsOf returns the newest steps of a session, in the order of their starts.
func (c *Console) stepsOf(session string) (steps []shownStep, more bool, err error) {
	ids, err := c.History.Records.IDs()
	if err != nil {
		return nil, false, err
	}
	looked := 0
	for _, id := range slices.Backward(ids) {
		if id <= session {
			break
		}
		if looked++; looked > lookedFor || len(steps) == shownSteps {
			more = true
			break
		}
		rec, err := c.History.Records.Get(id)
		if err != nil || rec.Session != session {
			continue
		}
		in, err := c.History.Inspect(id, stepBytes)
		if err != nil {
			continue
		}
		steps = append(steps, shownStep{in, rec.Status == record.Running})
	}
	slices.Reverse(steps)
	return steps, more, nil
}
