package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/crypto/nacl/box"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/holder"
	"github.com/unitask/unitask/policy"
)

// NewSession starts a session on the worker that has the most room of those that suit it. The caller's Ceiling and
// then the worker's hold. Files and folders are refused: write them. It lives until it is closed, or its life
// is over, whether this process is there or not.
func (c *Client) NewSession(ctx context.Context, caller unitask.Caller, req unitask.SessionRequest) (*Session, error) {
	view, err := c.newSession(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	return &Session{ID: view.ID, View: view, c: c}, nil
}

func (c *Client) newSession(ctx context.Context, caller unitask.Caller, req unitask.SessionRequest) (view holder.View, err error) {
	if have := unitask.SessionImages(); req.Image != "" && !slices.Contains(have, req.Image) {
		return view, &policy.FieldError{Field: "image", Value: fmt.Sprintf("%.80q", req.Image), Reason: "has no sessions on a fleet, to which a run takes an image of your own or a container's along, and a session does not: use " + strings.Join(have, ", ")}
	}
	req, denials, err := req.Elsewhere(caller.Ceiling)
	if err != nil {
		return view, err
	}
	arch := unitask.HostArch()
	if req.Arch != "" {
		arch = req.Arch
	}
	ask := call{Request: holder.Request{Op: holder.OpNew, New: &holder.New{Request: req.Request, LifeMS: policy.Millis(req.Life), IdleMS: policy.Millis(req.Idle)}}, Caller: caller.Name}
	suits := func(w WorkerInfo) bool {
		return w.Arch == string(arch) && w.MemoryMB >= req.MemoryMB && (len(w.Kernels) == 0 || slices.Contains(w.Kernels, string(unitask.Linux))) &&
			(req.Image == "" || len(w.Images) == 0 || slices.Contains(w.Images, req.Image))
	}
	r, err := c.begin(ctx, ask, req.Secrets, suits)
	if err != nil {
		return view, err
	}
	if len(r.Sessions) != 1 || !idForm.MatchString(r.Sessions[0].ID) {
		return view, hostError(fmt.Errorf("the worker's answer: %w", errMalformed))
	}
	view = r.Sessions[0]
	view.Denials = append(denials, view.Denials...)
	return view, nil
}

// begin asks the workers that suit, in the order of their room, until one takes it.
func (c *Client) begin(ctx context.Context, ask call, secrets map[string]string, suits func(WorkerInfo) bool) (r reply, err error) {
	workers, err := c.Workers(ctx)
	if err != nil {
		return r, hostError(err)
	}
	workers = slices.DeleteFunc(workers, func(w WorkerInfo) bool { return w.Draining || !suits(w) })
	slices.SortStableFunc(workers, func(a, b WorkerInfo) int { return (b.MemoryMB - b.UsedMB) - (a.MemoryMB - a.UsedMB) })
	err = hostError(errors.New("no worker is there that suits the session: see unitask fleet status"))
	for _, w := range workers {
		ask.Sealed = nil
		if len(secrets) > 0 {
			text, e := json.Marshal(secrets)
			if e == nil && len(w.Key) != 32 {
				e = errMalformed
			}
			if e == nil {
				ask.Sealed, e = box.SealAnonymous(nil, text, (*[32]byte)(w.Key), nil)
			}
			if e != nil {
				return r, hostError(e)
			}
		}
		r, err = c.send(ctx, subjectBegin+c.config.Tenant+"."+w.ID, w.ID, ask, nil, nil)
		var gone *SessionLostError
		if err == nil || ctx.Err() != nil || !r.Other && !errors.As(err, &gone) && !errors.Is(err, nats.ErrNoResponders) {
			return r, err
		}
	}
	return r, err
}

// SessionViews are the tenant's sessions: those whose worker is gone are lost.
func (c *Client) SessionViews(ctx context.Context) (list []holder.View, err error) {
	s, err := openSessions(ctx, c.js, c.config.Tenant)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, hostError(err)
	}
	keys, err := s.kv.Keys(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, hostError(err)
	}
	workers, err := c.Workers(ctx)
	if err != nil {
		return nil, hostError(err)
	}
	for _, id := range keys[:min(len(keys), maxSessions)] {
		e, _, err := s.get(ctx, id)
		if err != nil {
			continue // it has ended
		}
		if e.View.State != holder.Paused && !slices.ContainsFunc(workers, func(w WorkerInfo) bool { return w.ID == e.Worker }) {
			e.View.State = holder.Lost
		}
		list = append(list, e.View)
	}
	slices.SortFunc(list, func(a, b holder.View) int { return a.Began.Compare(b.Began) })
	return list, nil
}

// Session is a session on a worker of the fleet. Any goroutine may use it, and any process of the tenant.
// A call's error is a *unitask.SessionError where it has ended, a *SessionLostError where its worker is gone, and a
// *unitask.BusyError where there is no room. A session that is paused goes on by the next call.
type Session struct {
	ID   string
	View holder.View // as it began

	c *Client
}

// Session is the session of that id; a call finds whether there is one.
func (c *Client) Session(id string) *Session { return &Session{ID: id, c: c} }

// ask has the session's worker do something.
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
	for limit := time.Now().Add(c.config.Times.Lease); err == nil; {
		var e sessionEntry
		if e, _, err = bucket.get(ctx, s.ID); err != nil {
			break
		}
		if e.View.State == holder.Paused {
			if ask.Op == holder.OpPause {
				return r, nil
			}
			if ask.Op == holder.OpEnd {
				return c.begin(ctx, ask, nil, func(WorkerInfo) bool { return true })
			}
			if err := s.Resume(ctx, nil); err != nil {
				return r, err
			}
			continue
		}
		r, err = c.send(ctx, subjectSession+c.config.Tenant+"."+s.ID, e.Worker, ask, stdout, stderr)
		var lost *SessionLostError
		if errors.As(err, &lost) {
			lost.ID, lost.PausedAt = s.ID, e.PausedAt
			if ask.Op == holder.OpEnd {
				return c.begin(ctx, ask, nil, func(w WorkerInfo) bool { return true })
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

// told is an error as callers branch on it.
func (s *Session) told(err error) error {
	var e *holder.Error
	if errors.As(err, &e) && e.Code == holder.CodeGone {
		return &unitask.SessionError{ID: s.ID, Why: strings.TrimPrefix(e.Message, "session "+s.ID+" has ended: ")}
	}
	if err == nil || errors.As(err, &e) || errors.As(err, new(*SessionLostError)) || errors.As(err, new(*unitask.SessionError)) || errors.Is(err, context.Canceled) {
		return err
	}
	return hostError(err)
}

// send sends a call and waits for its answer, for as long as the worker is there.
func (c *Client) send(ctx context.Context, subject, worker string, ask call, stdout, stderr io.Writer) (r reply, err error) {
	store, err := openTenant(ctx, c.js, c.config.Tenant)
	if err != nil {
		return r, err
	}
	text, err := store.message(ctx, ask)
	if err != nil {
		return r, err
	}
	inbox := c.nc.NewInbox()
	msgs := make(chan *nats.Msg, 4096)
	sub, err := c.nc.ChanSubscribe(inbox, msgs)
	if err != nil {
		return r, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := c.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: inbox, Data: text}); err != nil {
		return r, err
	}
	streams := map[string]io.Writer{"stdout": stdout, "stderr": stderr}
	have, lag := map[string]int64{}, map[string]bool{}
	tick := time.NewTicker(c.config.Times.Beat)
	defer tick.Stop()
	begin, taken := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			cancel := nats.NewMsg(subject)
			cancel.Header.Set(headCancel, inbox)
			_ = c.nc.PublishMsg(cancel)
			return r, context.Cause(ctx)
		case <-tick.C:
			workers, err := c.Workers(ctx)
			if err == nil && !slices.ContainsFunc(workers, func(w WorkerInfo) bool { return w.ID == worker }) {
				return r, &SessionLostError{ID: ask.Session, Worker: worker}
			}
			if !taken && time.Since(begin) > c.config.Times.Lease {
				return r, hostError(fmt.Errorf("worker %s does not answer", worker))
			}
		case m := <-msgs:
			name := m.Header.Get(headStream)
			switch {
			case m.Header.Get("Status") == "503":
				workers, err := c.Workers(ctx)
				if err == nil && !slices.ContainsFunc(workers, func(w WorkerInfo) bool { return w.ID == worker }) {
					return r, &SessionLostError{ID: ask.Session, Worker: worker}
				}
				return r, nats.ErrNoResponders
			case m.Header.Get(headTaken) != "":
				taken = true
			case m.Header.Get(headAnswer) != "":
				if text, err = store.whole(ctx, m.Data); err == nil {
					err = json.Unmarshal(text, &r)
				}
				if err != nil {
					return r, fmt.Errorf("the worker's answer: %w", err)
				}
				for name, all := range map[string][]byte{"stdout": r.Stdout, "stderr": r.Stderr} {
					if to := streams[name]; to != nil && int64(len(all)) > have[name] {
						_, _ = to.Write(all[have[name]:])
					}
				}
				if r.Result != nil {
					r.Result.Stdout, r.Result.Stderr = r.Stdout, r.Stderr
				}
				if r.Error != nil {
					return r, r.Error
				}
				return r, nil
			case name == "stdout" || name == "stderr":
				at, err := strconv.ParseInt(m.Header.Get(headOffset), 10, 64)
				if lag[name] = lag[name] || err != nil || at != have[name]; !lag[name] { // else it comes with the answer
					have[name] += int64(len(m.Data))
					if to := streams[name]; to != nil {
						_, _ = to.Write(m.Data)
					}
				}
			}
		}
	}
}

// Run runs a step, as unitask.Session.Run does.
func (s *Session) Run(ctx context.Context, step unitask.Step) (*unitask.Result, error) {
	r, err := s.ask(ctx, call{Request: holder.Request{Op: holder.OpRun, Step: &holder.Step{Code: step.Code, Language: step.Language, TimeoutMS: policy.Millis(step.Timeout)}}}, step.Stdout, step.Stderr)
	return r.Result, err
}

// Exec runs a command, which has no standard input and no terminal, and a time limit.
func (s *Session) Exec(ctx context.Context, c unitask.Command) (*unitask.Result, error) {
	if c.Stdin != nil || c.Terminal != nil || c.Approve != nil || c.Endless {
		return nil, &policy.FieldError{Field: "command", Value: "with standard input, a terminal, questions or no time limit", Reason: "has none of these in a session on a fleet"}
	}
	r, err := s.ask(ctx, call{Request: holder.Request{Op: holder.OpExec, Command: &holder.Command{Args: c.Args, Dir: c.Dir, Env: c.Env, TimeoutMS: policy.Millis(c.Timeout)}}}, c.Stdout, c.Stderr)
	return r.Result, err
}

// ReadFile returns a file of at most unitask.MaxSessionFile bytes.
func (s *Session) ReadFile(ctx context.Context, name string) ([]byte, error) {
	r, err := s.ask(ctx, call{Request: holder.Request{Op: holder.OpRead, Path: name}}, nil, nil)
	return r.Content, err
}

// WriteFile makes or replaces a file of at most unitask.MaxSessionFile bytes.
func (s *Session) WriteFile(ctx context.Context, name string, content []byte, mode fs.FileMode) error {
	_, err := s.ask(ctx, call{Request: holder.Request{Op: holder.OpWrite, Path: name, Mode: uint32(mode.Perm())}, Content: content}, nil, nil)
	return err
}

// List is as unitask.Session.List.
func (s *Session) List(ctx context.Context, name string, depth int) (list []unitask.SessionFile, more bool, err error) {
	r, err := s.ask(ctx, call{Request: holder.Request{Op: opFiles, Path: name, Count: depth}}, nil, nil)
	return r.Files, r.More, err
}

// Fork starts n sessions on the same worker that go on from where this one is.
func (s *Session) Fork(ctx context.Context, n int) (forks []*Session, err error) {
	r, err := s.ask(ctx, call{Request: holder.Request{Op: holder.OpFork, Count: n}}, nil, nil)
	for _, v := range r.Sessions {
		forks = append(forks, &Session{ID: v.ID, View: v, c: s.c})
	}
	return forks, err
}

// Pause has the object store keep the session, for a day or until its life is over: any worker of the same kind that has the
// same session key goes on with it. It is refused where the machine holds secrets, as unitask.Session.Pause.
func (s *Session) Pause(ctx context.Context) error {
	_, err := s.ask(ctx, call{Request: holder.Request{Op: holder.OpPause}}, nil, nil)
	return err
}

// Resume goes on with a session that is paused, or from the last pause of one that is lost; what it did since then is
// lost. Secrets have the values of those that it was given.
func (s *Session) Resume(ctx context.Context, secrets map[string]string) error {
	_, err := s.c.begin(ctx, call{Request: holder.Request{Op: holder.OpResume, Session: s.ID}}, secrets, func(WorkerInfo) bool { return true })
	return s.told(err)
}

// Extend is as unitask.Session.Extend.
func (s *Session) Extend(ctx context.Context, life time.Duration) error {
	_, err := s.ask(ctx, call{Request: holder.Request{Op: holder.OpExtend, LifeMS: policy.Millis(life)}}, nil, nil)
	return err
}

// Close ends it, wherever it is, and forgets one that is paused or lost.
func (s *Session) Close(ctx context.Context) error {
	_, err := s.ask(ctx, call{Request: holder.Request{Op: holder.OpEnd}}, nil, nil)
	return err
}
