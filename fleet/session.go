package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/crypto/nacl/box"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/holder"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/record"
)

// sessionRunner is a Runner that has sessions, too; OnHost's has.
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

func (h onHost) newSession(ctx context.Context, tenant, caller string, req unitask.SessionRequest) (*unitask.Session, error) {
	req.Files, req.Dirs = nil, nil // of this host
	return h.rt.NewSessionFor(ctx, h.sessionCaller(tenant, caller), req)
}

func (h onHost) revive(ctx context.Context, tenant, caller, id string, secrets map[string]string) (*unitask.Session, error) {
	return h.rt.Revive(ctx, h.sessionCaller(tenant, caller), id, secrets)
}

func (h onHost) home() string { return h.rt.Images().Home() }

// Bounds of what one worker does for sessions at once.
const (
	maxCalls      = 32 // of one session
	maxBegins     = 4  // of one tenant: each starts a machine
	parkPatience  = 2 * time.Minute
	beginPatience = 5 * time.Minute
)

// hosted is a session that this worker holds.
type hosted struct {
	*unitask.Session
	w        *Worker
	l        *lane
	memoryMB int
	calls    chan struct{}
	sub      *nats.Subscription

	using    sync.RWMutex // held by who uses it, and alone by who pauses it
	mu       sync.Mutex
	entry    sessionEntry
	revision uint64
	left     bool // it is no longer this worker's
	cancels  map[string]context.CancelFunc
}

// listenSessions takes begins.
func (l *lane) listenSessions() error {
	if _, can := l.w.runner.(sessionRunner); !can {
		return nil
	}
	places := make(chan struct{}, maxBegins)
	_, err := l.nc.Subscribe(subjectBegin+l.tenant+"."+l.w.info.ID, func(m *nats.Msg) {
		if m.Subject != m.Sub.Subject || m.Reply == "" {
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

// answer answers a call.
func (l *lane) answer(m *nats.Msg, r reply, err error) {
	if err != nil {
		r.Error = holder.WireError(err)
		r.Other = errors.As(err, new(*machine.OtherHostError)) || errors.As(err, new(*unitask.BusyError))
	}
	if res := r.Result; res != nil {
		r.Stdout, r.Stderr = res.Stdout, res.Stderr
		brief := *res
		brief.Stdout, brief.Stderr = nil, nil
		r.Result = &brief
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.w.config.Times.Lease)
	defer cancel()
	text, err := l.message(ctx, r)
	if err != nil {
		text, _ = json.Marshal(reply{Answer: holder.Answer{Error: holder.WireError(fmt.Errorf("the answer was not taken: %w", err))}})
	}
	msg := nats.NewMsg(m.Reply)
	msg.Header.Set(headAnswer, "1")
	msg.Data = text
	_ = l.nc.PublishMsg(msg)
}

// readCall reads what a tenant has sent, and says that it is there.
func (l *lane) readCall(ctx context.Context, m *nats.Msg) (c call, secrets map[string]string, err error) {
	taken := nats.NewMsg(m.Reply)
	taken.Header.Set(headTaken, l.w.info.ID)
	if err := l.nc.PublishMsg(taken); err != nil {
		return c, nil, err
	}
	text, err := l.whole(ctx, m.Data)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && len(c.Caller) > 256 {
		err = errMalformed
	}
	if err != nil {
		return c, nil, fmt.Errorf("the call: %w", err)
	}
	if len(c.Sealed) > 0 {
		plain, ok := box.OpenAnonymous(nil, c.Sealed, l.w.public, l.w.private)
		if !ok || len(plain) > maxSealed || json.Unmarshal(plain, &secrets) != nil {
			return c, nil, fmt.Errorf("the secrets: %w: they are not sealed for this worker", errMalformed)
		}
	}
	return c, secrets, nil
}

// begin starts a session, goes on with one that is paused, or removes one that nobody holds.
func (l *lane) begin(ctx context.Context, m *nats.Msg) (reply, error) {
	c, secrets, err := l.readCall(ctx, m)
	if err != nil {
		return reply{}, err
	}
	if l.w.draining() && c.Op != holder.OpEnd {
		return reply{}, &unitask.BusyError{What: "the worker is going", After: retryAfter}
	}
	switch {
	case c.Op == holder.OpNew && c.New != nil:
		return l.beginNew(ctx, c, secrets)
	case c.Op == holder.OpResume:
		return l.goOn(ctx, c, secrets)
	case c.Op == holder.OpEnd:
		return reply{}, l.forget(ctx, c.Session)
	}
	return reply{}, fmt.Errorf("a worker is not asked for %.40q: %w", c.Op, errMalformed)
}

// admit takes room for a session's machine, if there is some; give it back by dismiss.
func (w *Worker) admit(l *lane, memoryMB int) error {
	if w.room(l) && w.reserve(l, memoryMB) {
		w.began(l)
		return nil
	}
	return &unitask.BusyError{What: fmt.Sprintf("worker %s has no room for a machine of %d MiB", w.info.ID, memoryMB), After: retryAfter}
}

func (w *Worker) dismiss(l *lane, memoryMB int) {
	w.release(l, memoryMB)
	w.ended(l)
	w.woken()
}

func (l *lane) beginNew(ctx context.Context, c call, secrets map[string]string) (reply, error) {
	req := unitask.SessionRequest{Request: c.New.Request, Life: time.Duration(c.New.LifeMS), Idle: time.Duration(c.New.IdleMS)}
	req.Secrets = secrets
	if err := l.w.suits(req.Request); err != nil {
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

// host holds a session from now on: its entry says so, or it is ended.
func (l *lane) host(ctx context.Context, s *unitask.Session, caller string, memoryMB int, revision uint64, before sessionEntry) (reply, error) {
	w := l.w
	h := &hosted{Session: s, w: w, l: l, memoryMB: memoryMB, calls: make(chan struct{}, maxCalls), cancels: map[string]context.CancelFunc{}, revision: revision}
	h.entry = before
	h.entry.Worker, h.entry.Owner, h.entry.MemoryMB, h.entry.Key = w.info.ID, caller, memoryMB, keyName(w.config.SessionKey)
	began := before.View.Began
	if began.IsZero() {
		began = time.Now().UTC()
	}
	h.entry.View = holder.View{ID: s.ID, Parent: s.Parent, State: holder.Running, Language: s.Language, Image: s.Image, Began: began, ExpiresAt: s.Expires(), Denials: s.Policy.Denials}
	next, err := l.sessions.replace(ctx, h.entry, revision)
	if err == nil {
		h.revision = next
		h.sub, err = l.nc.Subscribe(subjectSession+l.tenant+"."+s.ID, h.take)
	}
	if err != nil {
		_ = s.Close()
		w.dismiss(l, memoryMB)
		return reply{}, err
	}
	w.mu.Lock()
	if w.sessions == nil {
		w.sessions = map[string]*hosted{}
	}
	w.sessions[l.tenant+"/"+s.ID] = h
	w.mu.Unlock()
	w.hosting.Go(h.live)
	return reply{Answer: holder.Answer{Sessions: []holder.View{h.entry.View}}}, nil
}

// goOn goes on with a session from its pause.
func (l *lane) goOn(ctx context.Context, c call, secrets map[string]string) (reply, error) {
	w := l.w
	if h := w.held(l, c.Session); h != nil {
		return reply{Answer: holder.Answer{Sessions: []holder.View{h.entry.View}}}, h.Resume(ctx)
	}
	e, revision, err := l.sessions.get(ctx, c.Session)
	if err != nil {
		return reply{}, err
	}
	if e.View.State != holder.Paused {
		if lives, err := l.lives(ctx, e.Worker); err != nil || lives && e.Worker != w.info.ID {
			return reply{}, errors.Join(err, &unitask.BusyError{What: "another worker holds the session", After: retryAfter})
		}
	}
	switch {
	case e.Pause == nil:
		return reply{}, &unitask.SessionError{ID: c.Session, Why: fmt.Sprintf("its worker %s is gone, and it was never paused", e.Worker)}
	case e.Key != keyName(w.config.SessionKey):
		return reply{}, &unitask.BusyError{What: "the session's pause is sealed to another worker's key: give workers one (--session-key)", After: retryAfter}
	}
	if err := w.admit(l, e.MemoryMB); err != nil {
		return reply{}, err
	}
	was, host := e, w.runner.(sessionRunner)
	e.View.State, e.Worker = holder.Running, w.info.ID
	if revision, err = l.sessions.replace(ctx, e, revision); err != nil { // from here on it is ours
		w.dismiss(l, e.MemoryMB)
		return reply{}, err
	}
	folder := filepath.Join(host.home(), "sessions", c.Session)
	var s *unitask.Session
	if _, err = os.Lstat(folder); err == nil {
		err = fmt.Errorf("session %s is on this worker's disk already", c.Session)
	} else if err = l.getState(ctx, w.config.Times, w.config.SessionKey, c.Session, *e.Pause, e.MemoryMB, folder, w.scratch.dir); err == nil {
		if s, err = host.revive(ctx, l.tenant, e.Owner, c.Session, secrets); err != nil {
			_ = unitask.ForgetSession(host.home(), c.Session)
		}
	}
	if err != nil {
		w.dismiss(l, e.MemoryMB)
		was.View.State = holder.Paused
		_, undone := l.sessions.replace(ctx, was, revision)
		return reply{}, errors.Join(err, undone)
	}
	return l.host(ctx, s, e.Owner, e.MemoryMB, revision, e)
}

// held is a session that this worker holds, nil if it does not.
func (w *Worker) held(l *lane, id string) *hosted {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sessions[l.tenant+"/"+id]
}

// forget removes the entry of a session that no worker holds, and its pause.
func (l *lane) forget(ctx context.Context, id string) error {
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
	if e.View.State != holder.Paused && e.Why == "" {
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

func (l *lane) dropPause(ctx context.Context, e sessionEntry) {
	if e.Pause != nil {
		_ = l.files.Delete(ctx, e.Pause.SHA256) // else it goes by its age
	}
}

// ours says that the session is still this worker's, by its entry.
func (h *hosted) ours(ctx context.Context) (bool, error) {
	v, err := h.l.sessions.kv.Get(ctx, h.ID)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		return !h.left, err
	}
	return !h.left && v.Revision() <= h.revision, nil
}

// live looks after the session until it ends here.
func (h *hosted) live() {
	tick := time.NewTicker(h.w.config.Times.Beat)
	defer tick.Stop()
	fresh := time.Now()
	for over := false; !over; {
		select {
		case <-h.Done():
			over = true
		case <-tick.C:
			ctx, cancel := context.WithTimeout(context.Background(), h.w.config.Times.Beat)
			if is, err := h.ours(ctx); err == nil && !is {
				h.leave()
			} else if err == nil && time.Since(fresh) > keep/4 && h.write(ctx, func(*sessionEntry) {}) == nil { // or it would go by its age
				fresh = time.Now()
			}
			cancel()
		}
	}
	_ = h.sub.Unsubscribe()
	h.mu.Lock()
	left := h.left
	h.left = true
	for _, cancel := range h.cancels {
		cancel()
	}
	h.mu.Unlock()
	if !left {
		why := "it was closed"
		var gone *unitask.SessionError
		if err := h.Close(); errors.As(err, &gone) {
			why = gone.Why
		} else if err != nil {
			why = err.Error()
		}
		ctx, cancel := context.WithTimeout(context.Background(), h.w.config.Times.Lease)
		if h.write(ctx, func(e *sessionEntry) { e.Why = why[:min(len(why), 1000)] }) == nil {
			h.l.dropPause(ctx, h.entry)
		}
		cancel()
	}
	h.w.mu.Lock()
	delete(h.w.sessions, h.l.tenant+"/"+h.ID)
	h.w.mu.Unlock()
	h.w.dismiss(h.l, h.memoryMB)
}

// write changes the session's entry, which must be as this worker has written it.
func (h *hosted) write(ctx context.Context, change func(*sessionEntry)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entry
	change(&e)
	revision, err := h.l.sessions.replace(ctx, e, h.revision)
	if err == nil {
		h.entry, h.revision = e, revision
	}
	return err
}

// leave ends it here: it is another worker's by now.
func (h *hosted) leave() {
	h.mu.Lock()
	h.left = true
	h.mu.Unlock()
	_ = h.Close()
	_ = unitask.ForgetSession(h.w.runner.(sessionRunner).home(), h.ID)
}

// pause has the object store keep the session, and ends it here.
func (h *hosted) pause(ctx context.Context) error {
	if !h.using.TryLock() {
		return &unitask.BusyError{What: "the session is in use", After: time.Second}
	}
	defer h.using.Unlock()
	if err := h.Pause(ctx); err != nil {
		return err
	}
	home := h.w.runner.(sessionRunner).home()
	b, err := h.l.putState(ctx, h.w.config.SessionKey, h.ID, filepath.Join(home, "sessions", h.ID), h.w.scratch.dir)
	if err != nil {
		return fmt.Errorf("the session is paused on its worker only: %w", err)
	}
	secrets := []string{}
	for _, s := range h.Policy.Effective.Secrets {
		secrets = append(secrets, s.Name)
	}
	old := h.entry
	h.mu.Lock()
	h.left = true // whoever reads what follows may go on with it
	h.mu.Unlock()
	err = h.write(ctx, func(e *sessionEntry) {
		e.View.State, e.View.ExpiresAt, e.Pause, e.PausedAt, e.Secrets = holder.Paused, h.Expires(), &b, time.Now().UTC(), secrets
	})
	if err != nil && !errors.Is(err, errFenced) { // if it was written after all, the next beat finds it so
		h.mu.Lock()
		h.left = false
		h.mu.Unlock()
		return err
	}
	if err == nil && old.Pause != nil && old.Pause.SHA256 != b.SHA256 {
		h.l.dropPause(ctx, old)
	}
	return errors.Join(err, h.Leave(), unitask.ForgetSession(home, h.ID))
}

// parkSessions pauses what can be when the worker goes, and ends the rest.
func (w *Worker) parkSessions() {
	ctx, cancel := context.WithTimeout(context.Background(), parkPatience)
	defer cancel()
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.sessions))
	w.mu.Unlock()
	var parking sync.WaitGroup
	for _, h := range all {
		parking.Go(func() {
			if err := h.pause(ctx); err != nil {
				w.log.Warn("a session ends with its worker", "session", h.ID, "error", err)
				_ = h.Close()
			}
		})
	}
	parking.Wait()
	w.hosting.Wait()
}

// take takes a call.
func (h *hosted) take(m *nats.Msg) {
	if m.Subject != m.Sub.Subject {
		return // see published
	}
	if inbox := m.Header.Get(headCancel); inbox != "" {
		h.mu.Lock()
		if cancel := h.cancels[inbox]; cancel != nil {
			cancel()
		}
		h.mu.Unlock()
		return
	}
	if m.Reply == "" {
		return
	}
	select {
	case h.calls <- struct{}{}:
	default:
		h.l.answer(m, reply{}, &unitask.BusyError{What: fmt.Sprintf("%d calls of this session are under way", maxCalls), After: retryAfter})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.mu.Lock()
	h.cancels[m.Reply] = cancel
	h.mu.Unlock()
	go func() {
		defer func() {
			cancel()
			h.mu.Lock()
			delete(h.cancels, m.Reply)
			h.mu.Unlock()
			<-h.calls
		}()
		timed, stop := context.WithTimeout(ctx, h.w.config.Times.Lease)
		is, err := h.ours(timed)
		stop()
		if err != nil || !is {
			return // who holds it answers
		}
		c, _, err := h.l.readCall(ctx, m)
		var r reply
		if err == nil {
			r, err = h.do(ctx, c, m)
		}
		h.l.answer(m, r, err)
	}()
}

// do does what a call asks for.
func (h *hosted) do(ctx context.Context, c call, m *nats.Msg) (r reply, err error) {
	switch c.Op {
	case holder.OpPause:
		return r, h.pause(ctx)
	case holder.OpEnd:
		return r, h.Close()
	}
	h.using.RLock()
	defer h.using.RUnlock()
	h.mu.Lock()
	left := h.left
	h.mu.Unlock()
	if left {
		return r, &unitask.BusyError{What: "the session was paused just now", After: time.Second}
	}
	out := &outlet{nc: h.l.nc, subject: m.Reply}
	switch {
	case c.Op == holder.OpRun && c.Step != nil:
		r.Result, err = h.Run(ctx, unitask.Step{Code: c.Step.Code, Language: c.Step.Language, Timeout: time.Duration(c.Step.TimeoutMS), Stdout: out.stream("stdout"), Stderr: out.stream("stderr")})
	case c.Op == holder.OpExec && c.Command != nil && !c.Command.Input && c.Command.Size == nil && !c.Command.Detach:
		r.Result, err = h.Exec(ctx, unitask.Command{Args: c.Command.Args, Dir: c.Command.Dir, Env: c.Command.Env, Timeout: time.Duration(c.Command.TimeoutMS), Stdout: out.stream("stdout"), Stderr: out.stream("stderr")})
	case c.Op == holder.OpResume:
		err = h.Resume(ctx)
	case c.Op == holder.OpExtend:
		if err = h.Extend(ctx, time.Duration(c.LifeMS)); err == nil {
			err = h.write(ctx, func(e *sessionEntry) { e.View.ExpiresAt = h.Expires() })
		}
		r.Sessions = []holder.View{h.entry.View}
	case c.Op == holder.OpFork:
		return h.fork(ctx, c)
	case c.Op == holder.OpRead:
		r.Content, err = h.ReadFile(ctx, c.Path, 0, 0)
	case c.Op == holder.OpWrite:
		err = h.WriteFile(ctx, c.Path, c.Content, fs.FileMode(c.Mode).Perm())
	case c.Op == opFiles:
		r.Files, r.More, err = h.List(ctx, c.Path, c.Count)
	case c.Op == holder.OpPut:
		err = h.Put(ctx, c.Name, c.Value)
	case c.Op == holder.OpGet && c.Name == "":
		r.Names, r.More, err = h.Values(ctx)
	case c.Op == holder.OpGet:
		r.Value, err = h.Get(ctx, c.Name)
	default:
		err = &holder.Error{Code: holder.CodeUsage, Message: fmt.Sprintf("a session on a fleet has no %.40q like this", c.Op)}
	}
	return r, err
}

// fork forks it: the forks are on the same worker, each with room of its own.
func (h *hosted) fork(ctx context.Context, c call) (r reply, err error) {
	n := 0
	for ; n < c.Count && n < unitask.MaxForks; n++ {
		if err = h.w.admit(h.l, h.memoryMB); err != nil {
			break
		}
	}
	var forks []*unitask.Session
	if err == nil {
		forks, err = h.Fork(ctx, c.Count)
	}
	for range n - len(forks) {
		h.w.dismiss(h.l, h.memoryMB)
	}
	for i, s := range forks {
		var one reply
		if err == nil {
			one, err = h.l.host(ctx, s, h.entry.Owner, h.memoryMB, 0, sessionEntry{})
			r.Sessions = append(r.Sessions, one.Sessions...)
		} else {
			_ = forks[i].Close()
			h.w.dismiss(h.l, h.memoryMB)
		}
	}
	return r, err
}
