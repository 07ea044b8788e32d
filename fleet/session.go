package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/record"
)

// sessionRunner is a Runner with sessions, as OnHost's is.
type sessionRunner interface {
	newSession(ctx context.Context, tenant, caller string, req unitask.SessionRequest) (*unitask.Session, error)
	revive(ctx context.Context, tenant, caller, id string, secrets map[string]string) (*unitask.Session, error)
	home() string
}

func (h onHost) sessionCaller(tenant, caller string) unitask.Caller {
	owner := tenant
	if caller != "" {
		owner += ":" + caller
	}
	return unitask.Caller{Name: owner, Via: record.ViaFleet, Ceiling: h.ceiling.For(tenant).Bringing("")}
}

func (h onHost) newSession(ctx context.Context, tenant, caller string, req unitask.SessionRequest) (*unitask.Session,
	error) {
	req.Files, req.Dirs = nil, nil // of this host
	return h.rt.NewSessionFor(ctx, h.sessionCaller(tenant, caller), req)
}

func (h onHost) revive(ctx context.Context, tenant, caller, id string, secrets map[string]string) (*unitask.Session,
	error) {
	return h.rt.Revive(ctx, h.sessionCaller(tenant, caller), id, secrets)
}

func (h onHost) home() string { return h.rt.Images().Home() }

// Limits of one worker's concurrent work for sessions.
const (
	maxCalls      = 32 // of one session
	maxBegins     = 4  // of one tenant: each starts a machine
	parkPatience  = 2 * time.Minute
	beginPatience = 5 * time.Minute
)

// listenSessions subscribes to requests that start or resume sessions.
func (l *tenantQueue) listenSessions() error {
	if _, can := l.w.runner.(sessionRunner); !can {
		return nil
	}
	places := make(chan struct{}, maxBegins)
	_, err := l.nc.Subscribe(subjectBegin+l.tenant+"."+l.w.info.ID, func(m *nats.Msg) {
		if m.Subject != m.Sub.Subject || !l.inbox(m.Reply) {
			return
		}
		select {
		case places <- struct{}{}:
		default:
			l.answer(m, reply{}, &unitask.BusyError{What: "the worker starts others of your sessions", After: retryAfter})
			return
		}
		go func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(context.Background(), beginPatience)
			defer cancel()
			r, err := l.begin(ctx, m)
			l.answer(m, r, err)
		}()
	})
	return err
}

// inbox reports whether a reply subject is an inbox of the tenant, and none that only workers may publish to.
func (l *tenantQueue) inbox(subject string) bool {
	return strings.HasPrefix(subject, inboxPrefix+l.tenant+".")
}

// answer answers a call.
func (l *tenantQueue) answer(m *nats.Msg, r reply, err error) {
	if err != nil {
		r.Error = sessiond.WireError(err)
		r.Other = errors.As(err, new(*machine.OtherHostError)) || errors.As(err, new(*unitask.BusyError))
	}
	if res := r.Result; res != nil {
		r.Stdout, r.Stderr = res.Stdout, res.Stderr
		brief := *res
		brief.Stdout, brief.Stderr = nil, nil
		brief.Artifacts = nil // they stay in this worker's record, and in the session's /out
		r.Result = &brief
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.w.config.Times.Lease)
	defer cancel()
	value := r.Value
	r.Value = nil
	text, err := l.enclose(ctx, r, ofReply, r.Stdout, r.Stderr, r.Content, value)
	if err != nil {
		text, _ = l.enclose(ctx,
			reply{Answer: sessiond.Answer{Error: sessiond.WireError(fmt.Errorf("the answer was not taken: %w", err))}}, ofReply)
	}
	msg := nats.NewMsg(m.Reply)
	msg.Header.Set(headAnswer, "1")
	msg.Data = text
	_ = l.nc.PublishMsg(msg)
}

// holding is a call's reservation in the worker's budget.
type holding struct {
	l *tenantQueue

	mu sync.Mutex
	n  int64
}

// more reserves n further bytes, if they are free.
func (h *holding) more(n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.l.w.memory.try(h.l.tenant, n) {
		return false
	}
	h.n += n
	return true
}

// take releases the reservation, and reserves n bytes, for which it may wait.
func (h *holding) take(ctx context.Context, n int64) error {
	h.give()
	err := h.l.w.memory.take(ctx, h.l.tenant, n)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.n += n
	}
	return err
}

func (h *holding) give() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n > 0 {
		h.l.w.memory.give(h.l.tenant, h.n)
		h.n = 0
	}
}

// readCall reads a tenant's call, and confirms its arrival. It waits at most readTime for room and for content.
func (l *tenantQueue) readCall(ctx context.Context, m *nats.Msg, holds *holding) (c call, secrets map[string]string,
	err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readTime,
		&unitask.BusyError{What: fmt.Sprintf("the call was not read within %v", readTime), After: retryAfter})
	defer cancel()
	taken := nats.NewMsg(m.Reply)
	taken.Header.Set(headTaken, l.w.info.ID)
	if err := l.nc.PublishMsg(taken); err != nil {
		return c, nil, err
	}
	var e envelope
	var parts [][]byte
	if err = holds.take(ctx, decodedTimes*int64(min(len(m.Data), ofCall.envelope))); err == nil {
		e, err = openEnvelope(m.Data, ofCall)
	}
	if err == nil {
		err = holds.take(ctx, e.memory())
	}
	if err == nil {
		parts, err = l.disclose(ctx, e, ofCall, &c)
	}
	if err == nil && len(c.Caller) > 256 {
		err = errMalformed
	}
	c.putIn(part(parts, 0))
	if err != nil {
		return c, nil, fmt.Errorf("the call: %w", err)
	}
	if len(c.Sealed) > 0 {
		if secrets, err = l.unseal(c, time.Now()); err != nil {
			return c, nil, err
		}
	}
	return c, secrets, nil
}

// begin starts a session, resumes a paused one, or removes one that no worker holds.
func (l *tenantQueue) begin(ctx context.Context, m *nats.Msg) (reply, error) {
	holds := holding{l: l}
	defer holds.give()
	c, secrets, err := l.readCall(ctx, m, &holds)
	if err != nil {
		return reply{}, err
	}
	if l.w.draining() && c.Op != sessiond.OpEnd {
		return reply{}, &unitask.BusyError{What: "the worker is going", After: retryAfter}
	}
	switch {
	case c.Op == sessiond.OpNew && c.New != nil:
		return l.beginNew(ctx, c, secrets)
	case c.Op == sessiond.OpResume:
		return l.resume(ctx, c, secrets)
	case c.Op == sessiond.OpEnd:
		return reply{}, l.forget(ctx, c.Session)
	}
	return reply{}, fmt.Errorf("a worker is not asked for %.40q: %w", c.Op, errMalformed)
}

// admit reserves room for a session's machine, if there is some. Release it with dismiss.
func (w *Worker) admit(l *tenantQueue, memoryMB int) error {
	if w.room(l) && w.reserve(l, memoryMB) {
		w.began(l)
		return nil
	}
	return &unitask.BusyError{What: fmt.Sprintf("worker %s has no room for a machine of %d MiB", w.info.ID, memoryMB),
		After: retryAfter}
}

func (w *Worker) dismiss(l *tenantQueue, memoryMB int) {
	w.release(l, memoryMB)
	w.ended(l)
	w.woken()
}

func (l *tenantQueue) beginNew(ctx context.Context, c call, secrets map[string]string) (reply, error) {
	req := unitask.SessionRequest{Request: c.New.Request, Life: time.Duration(c.New.LifeMS),
		Idle: time.Duration(c.New.IdleMS)}
	req.Secrets = secrets
	if err := l.w.matches(req.Request); err != nil {
		return reply{}, err
	}
	memoryMB := max(1, l.w.runner.MemoryMB(l.tenant, req.Request))
	if err := l.w.admit(l, memoryMB); err != nil {
		return reply{}, err
	}
	s, err := l.w.runner.(sessionRunner).newSession(ctx, l.tenant, c.Caller, req)
	if err != nil {
		l.w.dismiss(l, memoryMB)
		return reply{}, err
	}
	return l.host(ctx, s, c.Caller, memoryMB, 0, sessionEntry{})
}

// host makes this worker the session's host: it writes the entry, or ends the session if that fails.
func (l *tenantQueue) host(ctx context.Context, s *unitask.Session, caller string, memoryMB int, revision uint64,
	before sessionEntry) (reply, error) {
	w := l.w
	h := &hosted{Session: s, w: w, l: l, memoryMB: memoryMB, calls: make(chan struct{}, maxCalls),
		cancels: map[string]context.CancelFunc{}, revision: revision}
	h.entry = before
	h.entry.Worker, h.entry.Owner, h.entry.MemoryMB, h.entry.Key = w.info.ID, caller, memoryMB, keyName(l.sealing)
	began := before.View.Began
	if began.IsZero() {
		began = time.Now().UTC()
	}
	h.entry.View = sessiond.View{ID: s.ID, Parent: s.Parent, State: sessiond.Running, Language: s.Language, Image: s.Image,
		Began: began, ExpiresAt: s.Expires(), Denials: s.Policy.Denials}
	view := h.entry.View
	next, err := l.sessions.replace(ctx, h.entry, revision)
	if err == nil {
		h.revision = next
		h.sub, err = l.nc.Subscribe(subjectSession+l.tenant+"."+s.ID, h.take)
	}
	if err == nil && !w.keepSession(h) {
		_ = h.sub.Unsubscribe()
		before.View, before.Worker, before.Why = view, w.info.ID, "its worker went while it began"
		if before.Pause != nil {
			before.View.State, before.Why, before.Owner, before.MemoryMB, before.Key = sessiond.Paused, "", caller, memoryMB,
				h.entry.Key
		}
		_, _ = l.sessions.replace(ctx, before, next)
		err = &unitask.BusyError{What: "the worker is going", After: retryAfter}
	}
	if err != nil {
		_ = s.Close()
		w.dismiss(l, memoryMB)
		return reply{}, err
	}
	return reply{Answer: sessiond.Answer{Sessions: []sessiond.View{view}}}, nil
}

// keepSession registers a hosted session, unless the worker is exiting.
func (w *Worker) keepSession(h *hosted) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.parking {
		return false
	}
	if w.sessions == nil {
		w.sessions = map[string]*hosted{}
	}
	w.sessions[h.l.tenant+"/"+h.ID] = h
	w.hosting.Go(h.live)
	return true
}

// resume resumes a session from its pause.
func (l *tenantQueue) resume(ctx context.Context, c call, secrets map[string]string) (reply, error) {
	w := l.w
	if h := w.held(l, c.Session); h != nil {
		return reply{Answer: sessiond.Answer{Sessions: []sessiond.View{h.now().View}}}, h.Resume(ctx)
	}
	e, revision, err := l.sessions.get(ctx, c.Session)
	if err != nil {
		return reply{}, err
	}
	if e.View.State != sessiond.Paused {
		if lives, err := l.lives(ctx, e.Worker); err != nil || lives && e.Worker != w.info.ID {
			return reply{}, errors.Join(err, &unitask.BusyError{What: "another worker holds the session", After: retryAfter})
		}
	}
	switch {
	case e.Pause == nil:
		return reply{}, &unitask.SessionError{ID: c.Session,
			Why: fmt.Sprintf("its worker %s is gone, and it was never paused", e.Worker)}
	case e.Key != keyName(l.sealing):
		return reply{},
			&unitask.BusyError{What: "the session's pause is sealed to another worker's key: give workers one (--session-key)",
				After: retryAfter}
	}
	if err := w.admit(l, e.MemoryMB); err != nil {
		return reply{}, err
	}
	was, host := e, w.runner.(sessionRunner)
	e.View.State, e.Worker = sessiond.Running, w.info.ID
	if revision, err = l.sessions.replace(ctx, e, revision); err != nil { // from here on it is this worker's
		w.dismiss(l, e.MemoryMB)
		return reply{}, err
	}
	folder := sessionFolder(host.home(), c.Session)
	var s *unitask.Session
	if _, err = os.Lstat(folder); err == nil {
		err = fmt.Errorf("session %s is on this worker's disk already", c.Session)
	} else if err = l.getState(ctx, w.config.Times, l.sealing, c.Session, *e.Pause, e.MemoryMB, host.home(),
		w.scratch.dir); err == nil {
		var p machine.Pause
		if p, err = machine.ReadPause(folder); err == nil && p.Class.MemoryMB > e.MemoryMB {
			err = fmt.Errorf("session %s: %w: its machine has %d MiB, and its entry says %d", c.Session, errMalformed,
				p.Class.MemoryMB, e.MemoryMB)
		}
		if err != nil {
			_ = os.RemoveAll(folder)
		} else if s, err = host.revive(ctx, l.tenant, e.Owner, c.Session, secrets); err != nil {
			_ = paused.Forget(host.home(), c.Session)
		}
	}
	var r reply
	if err != nil {
		w.dismiss(l, e.MemoryMB)
	} else {
		r, err = l.host(ctx, s, e.Owner, e.MemoryMB, revision, e)
	}
	if err != nil {
		was.View.State = sessiond.Paused
		if _, undone := l.sessions.replace(context.WithoutCancel(ctx), was, revision); undone != nil {
			err = errors.Join(err, undone)
		}
	}
	return r, err
}

// held returns a session hosted by this worker, or nil.
func (w *Worker) held(l *tenantQueue, id string) *hosted {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sessions[l.tenant+"/"+id]
}

// forget removes the entry and the pause of a session that no worker hosts.
func (l *tenantQueue) forget(ctx context.Context, id string) error {
	if h := l.w.held(l, id); h != nil {
		return h.Close()
	}
	e, revision, err := l.sessions.get(ctx, id)
	if errors.As(err, new(*unitask.SessionError)) && revision > 0 {
		err = nil
	}
	if err != nil {
		return err
	}
	if e.View.State != sessiond.Paused && e.Why == "" {
		if lives, err := l.lives(ctx, e.Worker); err != nil || lives && e.Worker != l.w.info.ID {
			return errors.Join(err, &unitask.BusyError{What: "another worker holds the session", After: retryAfter})
		}
	}
	e.Why = "it was closed"
	if _, err := l.sessions.replace(ctx, e, revision); err != nil {
		return err
	}
	l.dropPause(ctx, e)
	return nil
}

func (l *tenantQueue) dropPause(ctx context.Context, e sessionEntry) {
	if e.Pause != nil {
		_ = l.files.Delete(ctx, e.Pause.SHA256) // otherwise the object store removes it when it expires
	}
}
