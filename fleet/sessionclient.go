package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
)

// NewSession starts a session on the matching worker with the most room. The caller's Ceiling and then the worker's
// apply. Files and folders are refused: write them. The session lasts until it is closed or its lifetime is over, also
// without this process.
func (c *Client) NewSession(ctx context.Context, caller unitask.Caller, req unitask.SessionRequest) (*Session, error) {
	s := &Session{c: c}
	var err error
	if s.View, err = c.newSession(ctx, caller, req, &s.values); err != nil {
		return nil, err
	}
	s.ID = s.View.ID
	return s, nil
}

func (c *Client) newSession(
	ctx context.Context,
	caller unitask.Caller,
	req unitask.SessionRequest,
	given *values,
) (view sessiond.View, err error) {
	if have := language.SessionImages(); req.Image != "" && !slices.Contains(have, req.Image) {
		return view, policy.Bad(
			"image",
			fmt.Sprintf("%.80q", req.Image),
			"has no sessions on a fleet, to which a run takes an image of your own or a container's along, "+
				"and a session does not: use %s",
			strings.Join(have, ", "),
		)
	}
	if req.Root {
		return view, policy.Bad("root", "true", "is not for sessions on a fleet")
	}
	req, denials, err := req.Elsewhere(caller.Ceiling)
	if err != nil {
		return view, err
	}
	arch := unitask.HostArch()
	if req.Arch != "" {
		arch = req.Arch
	}
	ask := call{
		Request: sessiond.Request{
			Op:  sessiond.OpNew,
			New: &sessiond.New{Request: req.Request, LifeMS: policy.Millis(req.Life), IdleMS: policy.Millis(req.Idle)},
		},
		Caller: caller.Name,
	}
	matches := func(w WorkerInfo) bool {
		return w.Arch == string(arch) && w.MemoryMB >= req.MemoryMB &&
			(len(w.Kernels) == 0 || slices.Contains(w.Kernels, string(unitask.Linux))) &&
			(req.Image == "" || len(w.Images) == 0 || slices.Contains(w.Images, req.Image))
	}
	r, err := c.begin(ctx, ask, req.Secrets, given, matches)
	if err != nil {
		return view, err
	}
	view = r.Sessions[0]
	view.Denials = append(denials, view.Denials...)
	return view, nil
}

// begin asks the matching workers, in the order of their room, until one accepts the session.
func (c *Client) begin(
	ctx context.Context,
	ask call,
	secrets map[string]string,
	given *values,
	matches func(WorkerInfo) bool,
) (r reply, err error) {
	if err := given.add(secrets); err != nil {
		return r, policy.Bad("secrets", fmt.Sprintf("of %d names", len(secrets)), "%v", err)
	}
	workers, err := c.Workers(ctx)
	if err != nil {
		return r, hostError(err)
	}
	workers = slices.DeleteFunc(workers, func(w WorkerInfo) bool { return w.Draining || !matches(w) })
	slices.SortStableFunc(
		workers,
		func(a, b WorkerInfo) int { return (b.MemoryMB - b.UsedMB) - (a.MemoryMB - a.UsedMB) },
	)
	err = hostError(errors.New("no worker is there that matches the session: see unitask fleet status"))
	for _, w := range workers {
		ask.Sealed = nil
		if len(secrets) > 0 {
			key, e := c.config.sealTo(w)
			if e != nil { // another one may have it
				err = hostError(e)
				continue
			}
			if e := ask.seal(secrets, key); e != nil {
				return r, hostError(e)
			}
		}
		r, err = c.send(ctx, subjectBegin+c.config.Tenant+"."+w.ID, w.ID, ask, answered{given: given})
		var gone *SessionLostError
		if err == nil || ctx.Err() != nil ||
			!r.Other && !errors.As(err, &gone) && !errors.Is(err, nats.ErrNoResponders) {
			return r, err
		}
	}
	return r, err
}

// SessionViews returns the tenant's sessions. Sessions of lost workers are shown as lost.
func (c *Client) SessionViews(ctx context.Context) (list []sessiond.View, err error) {
	workers, err := c.Workers(ctx)
	if err != nil {
		return nil, hostError(err)
	}
	err = listSessions(ctx, c.js, c.config.Tenant, func(e sessionEntry) {
		if e.View.State != sessiond.Paused && !cut(workers) &&
			!slices.ContainsFunc(workers, func(w WorkerInfo) bool { return w.ID == e.Worker }) {
			e.View.State = sessiond.Lost
		}
		list = append(list, e.View)
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, hostError(err)
	}
	slices.SortFunc(list, func(a, b sessiond.View) int { return a.Began.Compare(b.Began) })
	return list, nil
}

// Session is a session on a worker of the fleet. Any goroutine may use it, and any process of the tenant. A call
// returns a *unitask.SessionError if the session has ended, a *SessionLostError if its worker is lost, and a
// *unitask.BusyError if there is no room. The next call resumes a paused session.
type Session struct {
	ID   string
	View sessiond.View // as it began

	c      *Client
	values values // that this process sent to it
}

// Session returns the session with an id. It does not check that the session exists; calls do.
func (c *Client) Session(id string) *Session { return &Session{ID: id, c: c} }

// maxResumes bounds how often one call resumes a session that others pause again.
const maxResumes = 3

// ask sends a call to the session's worker and returns the reply.
func (s *Session) ask(ctx context.Context, ask call, stdout, stderr io.Writer) (r reply, err error) {
	c := s.c
	if !idForm.MatchString(s.ID) {
		return r, &unitask.SessionError{ID: fmt.Sprintf("%.80q", s.ID), Why: "or never was"}
	}
	ask.Session = s.ID
	bucket, err := openSessions(ctx, c.js, c.config.Tenant)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return r, &unitask.SessionError{ID: s.ID, Why: "or never was"}
	}
	resumes := 0
	for limit := time.Now().Add(c.config.Times.Lease); err == nil; {
		var e sessionEntry
		if e, _, err = bucket.get(ctx, s.ID); err != nil {
			break
		}
		if e.View.State == sessiond.Paused {
			if ask.Op == sessiond.OpPause {
				return r, nil
			}
			if ask.Op == sessiond.OpEnd {
				return c.begin(ctx, ask, nil, &s.values, func(WorkerInfo) bool { return true })
			}
			if resumes++; resumes > maxResumes {
				return r, hostError(fmt.Errorf("session %s: %w", s.ID, errPaused))
			}
			if err := s.Resume(ctx, nil); err != nil {
				return r, err
			}
			continue
		}
		r, err = c.send(
			ctx,
			subjectSession+c.config.Tenant+"."+s.ID,
			e.Worker,
			ask,
			answered{&s.values, stdout, stderr},
		)
		var lost *SessionLostError
		if errors.As(err, &lost) {
			lost.ID, lost.PausedAt = s.ID, e.PausedAt
			if ask.Op == sessiond.OpEnd {
				return c.begin(ctx, ask, nil, &s.values, func(w WorkerInfo) bool { return true })
			}
		}
		if !errors.Is(err, nats.ErrNoResponders) || time.Now().After(limit) {
			return r, s.told(err)
		}
		select { // it is being paused, or its worker is about to be lost
		case <-time.After(c.config.Times.Beat / 8):
			err = nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return r, s.told(err)
}

// told returns a worker's error as the type that callers branch on.
func (s *Session) told(err error) error {
	var e *sessiond.Error
	if errors.As(err, &e) && e.Code == sessiond.CodeGone {
		return &unitask.SessionError{ID: s.ID, Why: strings.TrimPrefix(e.Message, "session "+s.ID+" has ended: ")}
	}
	if err == nil || errors.As(err, &e) || errors.As(err, new(*SessionLostError)) ||
		errors.As(err, new(*unitask.SessionError)) ||
		errors.Is(err, context.Canceled) {
		return err
	}
	return hostError(err)
}

// exchange is a call that waits for its answer.
type exchange struct {
	c       *Client
	store   tenantStore
	ask     call
	worker  string
	given   *values
	streams map[string]io.Writer
	have    map[string]int64 // bytes of each stream that were passed on
	lag     map[string]bool  // a part is missing: the answer has the rest
	begin   time.Time
	taken   bool // the worker has the call
}

// answered receives a call's output, with the given values redacted. Its writers may be nil.
type answered struct {
	given          *values
	stdout, stderr io.Writer
}

// send sends a call and waits for its answer while the worker is present, at most for the call's time limit.
func (c *Client) send(ctx context.Context, subject, worker string, ask call, to answered) (r reply, err error) {
	ctx, timed := context.WithTimeoutCause(
		ctx,
		c.clock(ask),
		hostError(fmt.Errorf("worker %s has the call, and does not answer in its time", worker)),
	)
	defer timed()
	store, err := openTenant(ctx, c.js, c.config.Tenant)
	if err != nil {
		return r, err
	}
	content := ask.takeOut()
	text, err := store.enclose(ctx, ask, ofCall, content)
	if err != nil {
		return r, err
	}
	inbox := c.nc.NewInbox()
	heard, err := hear(c.nc, inbox, heardMessages, heardBytes)
	if err != nil {
		return r, err
	}
	defer heard.close()
	if err := c.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: inbox, Data: text}); err != nil {
		return r, err
	}
	x := &exchange{c: c, store: store, ask: ask, worker: worker, given: to.given, streams: map[string]io.Writer{},
		have: map[string]int64{}, lag: map[string]bool{}, begin: time.Now()}
	for name, w := range map[string]io.Writer{nameStdout: to.stdout, nameStderr: to.stderr} {
		if w != nil {
			plain := to.given.known().Writer(w)
			defer plain.Close()
			x.streams[name] = plain
		}
	}
	tick := time.NewTicker(c.config.Times.Beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			cancel := nats.NewMsg(subject)
			cancel.Header.Set(headCancel, inbox)
			_ = c.nc.PublishMsg(cancel)
			return r, context.Cause(ctx)
		case <-tick.C:
			if err := x.there(ctx); err != nil {
				return r, err
			}
		case <-heard.ready:
			m := heard.take()
			if m == nil {
				break
			}
			heard.again() // one message per turn, so that a flood can't delay the deadline
			if r, over, err := x.take(ctx, m); over || err != nil {
				return r, err
			}
		}
	}
}

// clock returns the time limit of a call, whatever its worker does.
func (c *Client) clock(ask call) time.Duration {
	limit := policy.MaxTimeout // of a step with the session's own limit
	switch {
	case ask.Step != nil && ask.Step.TimeoutMS > 0:
		limit = time.Duration(ask.Step.TimeoutMS)
	case ask.Command != nil && ask.Command.TimeoutMS > 0:
		limit = time.Duration(ask.Command.TimeoutMS)
	case ask.Step == nil && ask.Command == nil:
		limit = beginPatience
	}
	return limit + 2*transferTime + c.config.Times.Lease
}

// there returns why the worker does not answer: it is lost, or has not accepted the call. nil means that it is present.
func (x *exchange) there(ctx context.Context) error {
	kv, err := x.c.workersStore(ctx)
	if err == nil {
		_, err = kv.Get(ctx, x.worker)
	}
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) ||
		errors.Is(err, jetstream.ErrInvalidKey) {
		return &SessionLostError{ID: x.ask.Session, Worker: x.worker}
	}
	if !x.taken && time.Since(x.begin) > x.c.config.Times.Lease {
		return hostError(fmt.Errorf("worker %s does not answer", x.worker))
	}
	return nil
}

// take processes a message of the worker; over means that it is the answer.
func (x *exchange) take(ctx context.Context, m *nats.Msg) (r reply, over bool, err error) {
	name := m.Header.Get(headStream)
	switch {
	case m.Header.Get("Status") == "503":
		if err := x.there(ctx); err != nil {
			return r, true, err
		}
		return r, true, nats.ErrNoResponders
	case m.Header.Get(headTaken) != "":
		x.taken = true
	case m.Header.Get(headAnswer) != "":
		r, err = x.answer(ctx, m)
		return r, true, err
	case name == nameStdout || name == nameStderr:
		at, err := strconv.ParseInt(m.Header.Get(headOffset), 10, 64)
		lag := x.lag[name] || err != nil || at != x.have[name] || at > maxOutput
		if x.lag[name] = lag; lag { // the answer has the rest
			break
		}
		x.have[name] += int64(len(m.Data))
		if to := x.streams[name]; to != nil {
			_, _ = to.Write(m.Data)
		}
	}
	return r, false, nil
}

func (x *exchange) answer(ctx context.Context, m *nats.Msg) (reply, error) {
	r, err := x.store.readReply(ctx, m.Data)
	if err != nil {
		return r, fmt.Errorf("the worker's answer: %w", err)
	}
	for name, all := range map[string][]byte{nameStdout: r.Stdout, nameStderr: r.Stderr} {
		if to := x.streams[name]; to != nil && int64(len(all)) > x.have[name] {
			_, _ = to.Write(all[x.have[name]:])
		}
	}
	if err := boundReply(&r, x.ask, x.given.known()); err != nil {
		if r.Error == nil {
			err = fmt.Errorf("the worker's answer: %w", err)
		}
		return r, err
	}
	return r, nil
}

// readReply reads a worker's answer.
func (s tenantStore) readReply(ctx context.Context, data []byte) (r reply, err error) {
	e, err := openEnvelope(data, ofReply)
	if err != nil {
		return r, err
	}
	parts, err := s.disclose(ctx, e, ofReply, &r)
	r.Stdout, r.Stderr, r.Content, r.Value = part(parts, 0), part(parts, 1), part(parts, 2), part(parts, 3)
	return r, err
}
