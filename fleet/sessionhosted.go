package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/sessiond"
)

// hosted is a session that this worker hosts.
type hosted struct {
	*unitask.Session
	w        *Worker
	l        *tenantQueue
	memoryMB int
	calls    chan struct{}
	sub      *nats.Subscription

	using    sync.RWMutex // shared by users of the session, exclusive for a pause
	mu       sync.Mutex
	entry    sessionEntry
	revision uint64
	left     bool // it is not this worker's any more
	cancels  map[string]context.CancelFunc
}

// ours reports whether the session's entry still names this worker.
func (h *hosted) ours(ctx context.Context) (bool, error) {
	v, err := h.l.sessions.kv.Get(ctx, h.ID)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		return !h.left, err
	}
	return !h.left && v.Revision() <= h.revision, nil
}

// live renews the session's entry until the session ends on this worker.
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
			} else if err == nil && time.Since(fresh) > keep/4 &&
				h.write(ctx, func(*sessionEntry) {}) == nil { // or it would expire
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
			h.l.dropPause(ctx, h.now())
		}
		cancel()
	}
	h.w.mu.Lock()
	delete(h.w.sessions, h.l.tenant+"/"+h.ID)
	h.w.mu.Unlock()
	h.w.dismiss(h.l, h.memoryMB)
}

// now returns the session's entry as this worker has written it.
func (h *hosted) now() sessionEntry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.entry
}

// write changes the session's entry, which must be unchanged since this worker's last write.
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

// leave drops the session, which belongs to another worker by now.
func (h *hosted) leave() {
	h.mu.Lock()
	h.left = true
	h.mu.Unlock()
	_ = h.Close()
	_ = paused.Forget(h.w.runner.(sessionRunner).home(), h.ID)
}

// pause stores the session in the object store, and ends it on this worker.
func (h *hosted) pause(ctx context.Context) error {
	if !h.using.TryLock() {
		return &unitask.BusyError{What: "the session is in use", After: time.Second}
	}
	defer h.using.Unlock()
	if err := h.Pause(ctx); err != nil {
		return err
	}
	home := h.w.runner.(sessionRunner).home()
	b, err := h.l.putState(ctx, h.l.sealing, h.ID, home, h.w.scratch.dir)
	if err != nil {
		return fmt.Errorf("the session is paused on its worker only: %w", err)
	}
	secrets := []string{}
	for _, s := range h.Policy.Effective.Secrets {
		secrets = append(secrets, s.Name)
	}
	old := h.now()
	h.mu.Lock()
	h.left = true // whoever reads the next entry may resume it
	h.mu.Unlock()
	err = h.write(ctx, func(e *sessionEntry) {
		e.View.State, e.View.ExpiresAt, e.Pause, e.PausedAt, e.Secrets = sessiond.Paused, h.Expires(), &b, time.Now().UTC(),
			secrets
	})
	if err != nil && !errors.Is(err, errFenced) { // if the write succeeded after all, the next beat sees that
		h.mu.Lock()
		h.left = false
		h.mu.Unlock()
		return err
	}
	if err == nil && old.Pause != nil && old.Pause.SHA256 != b.SHA256 {
		h.l.dropPause(ctx, old)
	}
	return errors.Join(err, h.Leave(), paused.Forget(home, h.ID))
}

// parkSessions pauses the sessions when the worker exits, and ends those that can't be paused.
func (w *Worker) parkSessions() {
	ctx, cancel := context.WithTimeout(context.Background(), parkPatience)
	defer cancel()
	w.mu.Lock()
	w.parking = true
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

// take handles a message with a call.
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
	if !h.l.inbox(m.Reply) {
		return
	}
	select {
	case h.calls <- struct{}{}:
	default:
		h.l.answer(m, reply{}, &unitask.BusyError{What: fmt.Sprintf("%d calls of this session are under way", maxCalls),
			After: retryAfter})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.mu.Lock()
	_, twice := h.cancels[m.Reply]
	if !twice {
		h.cancels[m.Reply] = cancel
	}
	h.mu.Unlock()
	if twice {
		cancel()
		<-h.calls
		h.l.answer(m, reply{}, &sessiond.Error{Code: sessiond.CodeUsage,
			Message: "another call with this inbox is under way"})
		return
	}
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
			return // the session's new worker answers
		}
		holds := holding{l: h.l}
		defer holds.give()
		c, _, err := h.l.readCall(ctx, m, &holds)
		var r reply
		if err == nil {
			r, err = h.do(ctx, c, m, &holds)
		}
		h.l.answer(m, r, err)
	}()
}

// do executes a call.
func (h *hosted) do(ctx context.Context, c call, m *nats.Msg, holds *holding) (r reply, err error) {
	switch c.Op {
	case sessiond.OpPause:
		return r, h.pause(ctx)
	case sessiond.OpEnd:
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
	stdout, stderr := &outStream{o: out, name: nameStdout, holds: holds},
		&outStream{o: out, name: nameStderr, holds: holds}
	switch {
	case c.Op == sessiond.OpRun && c.Step != nil:
		r.Result, err = h.Run(ctx, unitask.Step{Code: c.Step.Code, Language: c.Step.Language,
			Timeout: time.Duration(c.Step.TimeoutMS), Stdout: stdout, Stderr: stderr})
	case c.Op == sessiond.OpExec && c.Command != nil && !c.Command.Input && c.Command.Size == nil && !c.Command.Detach:
		r.Result, err = h.Exec(ctx, unitask.Command{Args: c.Command.Args, Dir: c.Command.Dir, Env: c.Command.Env,
			Timeout: time.Duration(c.Command.TimeoutMS), Stdout: stdout, Stderr: stderr})
	case c.Op == sessiond.OpResume:
		err = h.Resume(ctx)
	case c.Op == sessiond.OpExtend:
		if err = h.Extend(ctx, time.Duration(c.LifeMS)); err == nil {
			err = h.write(ctx, func(e *sessionEntry) { e.View.ExpiresAt = h.Expires() })
		}
		r.Sessions = []sessiond.View{h.now().View}
	case c.Op == sessiond.OpFork:
		return h.fork(ctx, c)
	case c.Op == sessiond.OpRead:
		r.Content, err = h.read(ctx, c.Path, holds)
	case c.Op == sessiond.OpWrite:
		err = h.WriteFile(ctx, c.Path, c.Content, fs.FileMode(c.Mode).Perm())
	case c.Op == opFiles:
		r.Files, r.More, err = h.List(ctx, c.Path, c.Count)
	case c.Op == sessiond.OpPut:
		err = h.Put(ctx, c.Name, c.Value)
	case c.Op == sessiond.OpGet && c.Name == "":
		r.Names, r.More, err = h.Values(ctx)
	case c.Op == sessiond.OpGet:
		r.Value, err = h.Get(ctx, c.Name)
	default:
		err = &sessiond.Error{Code: sessiond.CodeUsage, Message: fmt.Sprintf("a session on a fleet has no %.40q like this",
			c.Op)}
	}
	return r, err
}

// fork forks the session on this worker. Each fork reserves its own room.
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
			one, err = h.l.host(ctx, s, h.now().Owner, h.memoryMB, 0, sessionEntry{})
			r.Sessions = append(r.Sessions, one.Sessions...)
		} else {
			_ = forks[i].Close()
			h.w.dismiss(h.l, h.memoryMB)
		}
	}
	return r, err
}

// smallFile is the size, in bytes, up to which a file is read without asking the worker's budget.
const smallFile = 64 << 10

// read returns a whole file. It reads a large file again, once there is room for the largest size.
func (h *hosted) read(ctx context.Context, name string, holds *holding) ([]byte, error) {
	text, err := h.ReadFile(ctx, name, 0, smallFile)
	if err != nil || len(text) < smallFile {
		return text, err
	}
	if err := holds.take(ctx, heldTimes*unitask.MaxSessionFile); err != nil {
		return nil, err
	}
	return h.ReadFile(ctx, name, 0, 0)
}
