package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

const (
	liveMost = 200             // current runs that a page lists
	listTime = 5 * time.Second // for the list of sessions
)

func (c *Console) inbox(w http.ResponseWriter, r *http.Request) {
	list, err := c.Approvals.Questions(r.Context())
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	c.show(w, r, "inbox.html", map[string]any{"Questions": list})
}

func (c *Console) answer(w http.ResponseWriter, r *http.Request) {
	f := r.PostForm
	v := run.Verdict(f.Get("verdict"))
	if v != run.AllowOnce && v != run.AllowRun && v != run.Deny {
		c.wrong(w, r, http.StatusBadRequest, errors.New("verdict: use one of the page's buttons"))
		return
	}
	until, err := time.Parse(time.RFC3339Nano, f.Get("until"))
	if err != nil || until.IsZero() {
		c.wrong(w, r, http.StatusBadRequest, errors.New("until: use one of the page's buttons"))
		return
	}
	q := run.Question{RunID: f.Get("run"), Host: f.Get("host"), Request: f.Get("request"), Until: until}
	if err := c.Approvals.ApproveShown(r.Context(), q, v); err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	c.to(w, r, "")
}

// liveRun is a current run, or a session that another process holds.
type liveRun struct {
	*record.Record
	Limit   time.Duration // of the code's time
	Own     bool          // this console started it
	Session bool
}

// liveSession is a session that the command line's process holds.
type liveSession struct {
	sessiond.View
	MemoryMB int // 0 is unknown
}

func (c *Console) live(w http.ResponseWriter, r *http.Request) {
	ids, err := c.Approvals.Underway()
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	sessions, err := c.sessions(r)
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	held, runs := map[string]bool{}, []liveRun{}
	for _, s := range sessions {
		held[s.ID] = true
	}
	more := max(0, len(ids)-liveMost)
	for _, id := range ids[more:] {
		if rec, err := c.History.Records.Get(id); err == nil && !held[id] && rec.Status == record.Running {
			runs = append(runs, c.liveRun(rec))
		}
	}
	c.show(w, r, "live.html", map[string]any{"Runs": runs, "More": more, "Sessions": sessions,
		"Images": sessionImages()})
}

func (c *Console) liveRun(rec *record.Record) liveRun {
	c.mu.Lock()
	_, own := c.own[rec.ID]
	c.mu.Unlock()
	one := liveRun{Record: rec, Own: own, Session: rec.Session == rec.ID}
	var granted policy.Effective
	if rec.Effective != nil && json.Unmarshal(rec.Effective, &granted) == nil && !one.Session {
		one.Limit = granted.Timeout
	}
	return one
}

// sessions lists the user's sessions with their memory, the oldest first.
func (c *Console) sessions(r *http.Request) ([]liveSession, error) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), listTime, errors.New("the process that holds the sessions does "+
		"not answer: it may be stopped"))
	defer cancel()
	answer, err := c.Sessions(ctx, sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
	if err != nil && !errors.Is(err, sessiond.ErrNone) {
		return nil, err
	}
	list := []liveSession{}
	for _, s := range answer.Sessions {
		one := liveSession{View: s}
		if rec, err := c.History.Records.Get(s.ID); err == nil && rec.Machine != nil {
			one.MemoryMB = rec.Machine.MemoryMB
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b liveSession) int { return a.Began.Compare(b.Began) })
	return list, nil
}

// kill ends a run that this console started. Others end where they were started.
func (c *Console) kill(w http.ResponseWriter, r *http.Request) {
	id := r.PostForm.Get("run")
	c.mu.Lock()
	end := c.own[id]
	c.mu.Unlock()
	if end == nil {
		c.wrong(w, r, http.StatusConflict, fmt.Errorf("run %.80q has ended, or this console did not start it", id))
		return
	}
	end()
	c.to(w, r, "run?id="+id)
}

func (c *Console) runs(w http.ResponseWriter, r *http.Request) {
	list, next, err := c.History.Page(history.Filter{Limit: pageRuns, Before: r.URL.Query().Get("before")})
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	c.show(w, r, "runs.html", map[string]any{"Runs": list, "Next": next})
}
