package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// claim is a run that a worker has claimed: the entry's revision is the fence.
type claim struct {
	w        *Worker
	store    tenantStore
	run      string
	entry    entry
	revision uint64
	msg      jetstream.Msg
	out      *outlet
}

// handle decides on a message of the queue: it is acknowledged when nothing more is to be done
// about its run.
func (w *Worker) handle(ctx context.Context, s tenantStore, msg jetstream.Msg) {
	var t ticket
	if len(msg.Data()) > maxTicket || json.Unmarshal(msg.Data(), &t) != nil || !idForm.MatchString(t.Run) {
		_ = msg.Term() // not what a client writes
		return
	}
	log := w.log.With("run", t.Run, "tenant", s.tenant)
	e, revision, err := s.get(ctx, t.Run)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, errMalformed):
		log.Warn("a message about no run was dropped", "error", err)
		_ = msg.Term()
		return
	case err != nil:
		_ = msg.NakWithDelay(w.config.Times.Beat)
		return
	case e.State.over():
		_ = msg.Ack()
		return
	case e.State == Claimed && e.Worker == w.info.ID && w.has(s.tenant, t.Run):
		_ = msg.InProgress() // it came again because the heart beat late
		return
	}
	c := &claim{w: w, store: s, run: t.Run, entry: e, revision: revision, msg: msg}
	if !w.reserve(e.MemoryMB) {
		_ = msg.NakWithDelay(min(pollTime, w.config.Times.Beat)) // for another worker, or later
		return
	}
	defer w.change(0, -e.MemoryMB)
	job, malformed := readTask(ctx, s, e.Task)
	if malformed != nil && !errors.Is(malformed, errMalformed) && !errors.Is(malformed, jetstream.ErrObjectNotFound) {
		_ = msg.NakWithDelay(w.config.Times.Beat)
		return
	}
	if e.State == Claimed { // and its message came again: that worker is lost
		if why := again(job.Request, e); why != "" {
			w.count(func(i *WorkerInfo) { i.Lost++ })
			c.lose(ctx, why)
			return
		}
		w.count(func(i *WorkerInfo) { i.Retried++ })
		log.Warn("its worker is lost; it is made again", "worker", e.Worker, "attempt", e.Attempt+1)
	}
	c.entry.State, c.entry.Worker, c.entry.Attempt = Claimed, w.info.ID, e.Attempt+1
	if c.revision, err = s.replace(ctx, t.Run, c.entry, revision); err != nil {
		_ = msg.NakWithDelay(min(pollTime, w.config.Times.Beat)) // somebody else was quicker
		return
	}
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.out = &outlet{nc: w.nc, subject: subjectOut + s.tenant + "." + t.Run, attempt: c.entry.Attempt}
	c.out.changed()
	look := make(chan struct{}, 1)
	w.hold(s.tenant, t.Run, func(why error) {
		if why != nil {
			stop(why)
			return
		}
		select {
		case look <- struct{}{}:
		default:
		}
	})
	beating := make(chan struct{})
	go func() { defer close(beating); c.beat(work, stop, look) }()
	var r report
	if malformed == nil {
		r, malformed = c.perform(work, job)
	}
	cause := context.Cause(work)
	c.end(ctx, r, job, malformed, cause)
	stop(nil)
	<-beating
	w.hold(s.tenant, t.Run, nil)
}

// again says why a run whose worker is lost is not made again, "" if it is.
func again(req unitask.Request, e entry) string {
	switch {
	case !Repeatable(req):
		return fmt.Sprintf("worker %s was lost while the code ran; it had network or secrets, so it is not run twice", e.Worker)
	case e.Attempt >= maxAttempts:
		return fmt.Sprintf("%d workers were lost while it ran", e.Attempt)
	}
	return ""
}

func (w *Worker) has(tenant, run string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[tenant+"/"+run] != nil
}

// hold notes that a run is under way, or with nil that it is not.
func (w *Worker) hold(tenant, run string, stop context.CancelCauseFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if stop == nil {
		delete(w.runs, tenant+"/"+run)
		w.info.Done++
		return
	}
	w.runs[tenant+"/"+run] = stop
}

// beat keeps the claim, and ends the run when the entry is no longer this claim's.
func (c *claim) beat(ctx context.Context, stop context.CancelCauseFunc, look <-chan struct{}) {
	for tick := time.NewTicker(c.w.config.Times.Beat); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-look:
		case <-tick.C:
			_ = c.msg.InProgress()
		}
		timed, cancel := context.WithTimeout(ctx, c.w.config.Times.Beat)
		v, err := c.store.runs.Get(timed, c.run)
		cancel()
		if err == nil && v.Revision() != c.revision || errors.Is(err, jetstream.ErrKeyNotFound) {
			stop(errFenced)
		}
	}
}

// perform gets what the run brings and runs it.
func (c *claim) perform(ctx context.Context, t task) (r report, err error) {
	job := Job{ID: c.run, Tenant: c.store.tenant, Caller: t.Caller, Request: t.Request, Colors: t.Colors, Stdout: c.out.stream("stdout"), Stderr: c.out.stream("stderr"), Events: c.out.event}
	if t.Stdin {
		job.Stdin = &remoteStdin{ctx: ctx, ask: c.ask}
	}
	if len(t.Request.Secrets) > 0 {
		if err := c.secrets(ctx, job.Request.Secrets); err != nil {
			return r, err
		}
	}
	dir, err := os.MkdirTemp("", "unitask-fleet-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return r, err
	}
	if t.Files != nil {
		content, err := c.store.open(ctx, *t.Files, maxFiles)
		if err == nil {
			job.Folder, err = unpack(content, dir)
			content.Close()
		}
		if err != nil {
			return r, fmt.Errorf("what the run brings: %w", err)
		}
	}
	done, err := c.w.runner.Run(ctx, job)
	r.Result, r.Machine = done.Result, done.Machine
	var field *policy.FieldError
	if errors.As(err, &field) {
		r.Field = &fieldError{field.Field, field.Value, field.Reason, field.Would}
	}
	if done.Left == nil {
		return r, err
	}
	left, e := os.CreateTemp(dir, "left")
	if e != nil {
		return r, errors.Join(err, e)
	}
	defer left.Close()
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	if r.Stdout, r.Stderr, e = pack(left, done.Left); e == nil {
		if _, e = left.Seek(0, 0); e == nil {
			r.Left, e = c.store.put(storing, left, true)
		}
	}
	return r, errors.Join(err, e)
}

// end says how the run ended, unless somebody else has.
func (c *claim) end(ctx context.Context, r report, t task, err, cause error) {
	if errors.Is(cause, errFenced) {
		c.settle(ctx)
		return
	}
	if errors.Is(cause, errDrained) {
		if again(t.Request, c.entry) == "" {
			back := c.entry
			back.State, back.Worker = Queued, ""
			if _, e := c.store.replace(ctx, c.run, back, c.revision); e == nil {
				_ = c.msg.Nak()
				c.out.changed()
				return
			}
			c.settle(ctx)
			return
		}
		c.lose(ctx, fmt.Sprintf("worker %s went away before the code had ended", c.w.info.ID))
		return
	}
	if err != nil && r.Result == nil && r.Field == nil {
		r.Error = err.Error()
	}
	next := c.entry
	next.State = Ended
	e := c.until(ctx, func(ctx context.Context) (e error) {
		if next.Report, e = r.put(ctx, c.store); e != nil {
			return e
		}
		_, e = c.store.replace(ctx, c.run, next, c.revision)
		return e
	})
	if e != nil {
		c.w.log.Warn("a result was not taken", "run", c.run, "error", e)
		c.settle(ctx)
		return
	}
	_ = c.msg.Ack()
	c.out.changed()
}

// lose ends the run as lost.
func (c *claim) lose(ctx context.Context, why string) {
	next := c.entry
	next.State, next.Why = Lost, why
	err := c.until(ctx, func(ctx context.Context) error {
		_, err := c.store.replace(ctx, c.run, next, c.revision)
		return err
	})
	if err != nil {
		c.settle(ctx)
		return
	}
	_ = c.msg.Ack()
	c.out = &outlet{nc: c.w.nc, subject: subjectOut + c.store.tenant + "." + c.run, attempt: c.entry.Attempt}
	c.out.changed()
}

// until does something that takes a connection, again until it is there; not longer than the
// queue's own patience, after which the run is somebody else's.
func (c *claim) until(ctx context.Context, do func(context.Context) error) error {
	limit := time.Now().Add(10 * c.w.config.Times.Lease)
	for {
		timed, cancel := context.WithTimeout(ctx, c.w.config.Times.Lease)
		err := do(timed)
		cancel()
		if err == nil || errors.Is(err, errFenced) || ctx.Err() != nil || time.Now().After(limit) {
			return err
		}
		time.Sleep(min(c.w.config.Times.Beat, time.Second))
	}
}

// settle acknowledges the message of a run that is over; of any other, it is its new worker's.
func (c *claim) settle(ctx context.Context) {
	timed, cancel := context.WithTimeout(ctx, c.w.config.Times.Lease)
	defer cancel()
	if e, _, err := c.store.get(timed, c.run); err == nil && e.State.over() || errors.Is(err, jetstream.ErrKeyNotFound) {
		_ = c.msg.Ack()
	}
}

// ask asks the submitter for something.
func (c *claim) ask(ctx context.Context, q question) (*nats.Msg, error) {
	q.Worker, q.Attempt = c.w.info.ID, c.entry.Attempt
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return c.w.nc.RequestWithContext(ctx, subjectAsk+c.store.tenant+"."+c.run, text)
}
