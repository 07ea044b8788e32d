package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// claim is a run that this worker has claimed: the entry's revision is the fence.
type claim struct {
	w        *Worker
	queue    *tenantQueue
	store    tenantStore
	run      string
	entry    entry
	revision uint64
	msg      jetstream.Msg
	out      *outlet
}

// later puts a message back for another worker or a later time. Often delivered messages are delayed longer.
func (w *Worker) later(msg jetstream.Msg) {
	pause := min(pollTime, w.config.Times.Beat)
	if deliveries(msg) > oftenDelivered {
		pause *= rarely
	}
	_ = msg.NakWithDelay(pause)
}

// A message that was delivered oftenDelivered times is delayed by rarely times the pause.
const (
	oftenDelivered = 60
	rarely         = 10
)

// handle processes a message of the queue, and acknowledges it when its run needs no more work. The tenant can write
// the entry, so handle uses from it only values that concern that tenant alone. A run's needs, and whether it may be
// repeated, are read from the task itself.
func (w *Worker) handle(ctx context.Context, l *tenantQueue, d delivery) {
	msg := d.msg
	var t ticket
	if len(msg.Data()) > maxTicket || json.Unmarshal(msg.Data(), &t) != nil || !idForm.MatchString(t.Run) {
		_ = msg.Term() // malformed: no client writes this
		return
	}
	if d.orphan == "" && !w.begin(l.tenant, t.Run) {
		_ = msg.InProgress() // it is being handled, and was redelivered because of a late heartbeat
		return
	}
	c, watched := l.candidate(ctx, d, t.Run)
	if watched {
		return
	}
	var give func() // for another worker
	if c != nil {
		give = c.undertake(ctx)
	}
	w.leave(l.tenant, t.Run)
	if give != nil {
		give()
	}
}

// missingDeliveries is the number of deliveries after which a run without an entry counts as missing.
const missingDeliveries = 5

func deliveries(msg jetstream.Msg) uint64 {
	meta, err := msg.Metadata()
	if err != nil {
		return missingDeliveries
	}
	return meta.NumDelivered
}

// take claims the run in its entry. If the answer is lost, the entry shows whether the claim succeeded.
func (c *claim) take(ctx context.Context) error {
	before := c.revision
	return c.w.config.Times.patiently(ctx, func(ctx context.Context) error {
		revision, err := c.store.replace(ctx, c.run, c.entry, before)
		if err != nil {
			is, at, e := c.store.get(ctx, c.run)
			if e != nil || is.State != Claimed || is.Worker != c.entry.Worker || is.Attempt != c.entry.Attempt ||
				is.Reading != c.entry.Reading {
				return err
			}
			revision = at
		}
		c.revision = revision
		return nil
	})
}

// matches checks that a task is for a worker of this kind, because the tenant chose the queue.
func (w *Worker) matches(req unitask.Request) error {
	if req.Arch != "" && string(req.Arch) != w.info.Arch {
		return fmt.Errorf("task: %w: it is for %.20q, in the queue for %s", errMalformed, req.Arch, w.info.Arch)
	}
	if len(req.Ask) > 0 {
		return fmt.Errorf("task: %w: nobody is there to be asked about %.80q", errMalformed, req.Ask[0])
	}
	return nil
}

// work runs the claimed task, unless it is malformed, and reports the outcome.
func (c *claim) work(ctx context.Context, job task, malformed error) {
	w, tenant := c.w, c.queue.tenant
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.out = c.outlet()
	c.out.changed()
	look := make(chan struct{}, 1)
	w.hold(tenant, c.run, func(why error) {
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
	w.metrics.ended(c.queue, c.end(ctx, r, job, malformed, cause))
	stop(nil)
	<-beating
	w.hold(tenant, c.run, nil)
}

func (c *claim) outlet() *outlet {
	return &outlet{nc: c.queue.nc, subject: subjectOut + c.queue.tenant + "." + c.run, attempt: c.entry.Attempt}
}

// again returns why a run of a lost worker is not repeated, or "" if it is repeated.
func again(req unitask.Request, e entry) string {
	if !Repeatable(req) {
		return fmt.Sprintf("worker %s was lost while the code ran; it had network or secrets, so it is not run twice",
			e.Worker)
	}
	return exhausted(e)
}

// exhausted returns why a run of a lost worker has no attempts left, or "". It applies to all kinds of runs.
func exhausted(e entry) string {
	switch {
	case e.Losses+1 >= maxLosses:
		return fmt.Sprintf("%d workers were lost while they read or ran it", e.Losses+1)
	case e.Attempt >= maxClaims:
		return fmt.Sprintf("%d workers had it, and none ended it", e.Attempt)
	}
	return ""
}

// beat renews the claim, and stops the run when another worker or the submitter has replaced the entry.
func (c *claim) beat(ctx context.Context, stop context.CancelCauseFunc, look <-chan struct{}) {
	missing := 0
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
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			missing++
		} else {
			missing = 0
		}
		if err == nil && v.Revision() > c.revision || missing > 1 {
			stop(errFenced)
		}
	}
}

// perform fetches the run's files and runs it.
func (c *claim) perform(ctx context.Context, t task) (r report, err error) {
	job := Job{ID: c.run, Tenant: c.store.tenant, Caller: t.Caller, Request: t.Request, Colors: t.Colors,
		Stdout: c.out.stream("stdout"), Stderr: c.out.stream("stderr"), Events: c.out.event}
	if t.Stdin {
		job.Stdin = &remoteStdin{ctx: ctx, ask: c.ask}
	}
	if err := c.judge(t); err != nil { // before anything is fetched
		return c.refused(r, err)
	}
	if err := t.putIn(ctx, c.store, c.entry.Code); err != nil {
		return r, fmt.Errorf("the code: %w", err)
	}
	job.Request = t.Request
	if len(t.Request.Secrets) > 0 {
		if err := c.secrets(ctx, job.Request.Secrets); err != nil {
			return r, err
		}
	}
	if t.Files != nil {
		dir, err := os.MkdirTemp(c.w.scratch.dir, "run-")
		if err != nil {
			return r, err
		}
		defer os.RemoveAll(dir)
		if job.Folder, err = c.bring(ctx, *t.Files, dir); err != nil {
			return r, fmt.Errorf("what the run brings: %w", err)
		}
	}
	if t.Image != nil {
		job.Image, job.Disk = t.Image, func(ctx context.Context) (io.ReadCloser,
			error) {
			return c.store.openImage(ctx, *t.Image)
		}
	}
	done, err := c.w.runner.Run(ctx, job)
	r.Result, r.Machine = done.Result, done.Machine
	if r, err = c.refused(r, err); done.Left == nil {
		return r, err
	}
	left, e := os.CreateTemp(c.w.scratch.dir, "left-")
	if e != nil {
		return r, errors.Join(err, e)
	}
	defer func() { left.Close(); os.Remove(left.Name()) }()
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	if r.Stdout, r.Stderr, e = pack(storing, left, done.Left); e == nil {
		e = c.w.config.Times.patiently(storing, func(ctx context.Context) (err error) {
			if _, err = left.Seek(0, 0); err == nil {
				r.Left, err = c.store.put(ctx, left, true)
			}
			return err
		})
	}
	return r, errors.Join(err, e)
}

// judge returns an error if this host refuses the run, before any of its files are fetched.
func (c *claim) judge(t task) error {
	if j, can := c.w.runner.(judgingRunner); can {
		return j.judge(c.queue.tenant, t)
	}
	return nil
}

// refused adds the request's field that this host refuses to the report.
func (c *claim) refused(r report, err error) (report, error) {
	var field *policy.FieldError
	if errors.As(err, &field) {
		r.Field = &fieldError{field.Field, field.Value, field.Reason, field.Would}
	}
	return r, err
}

// bring unpacks the run's files into a new folder in dir, and returns its path.
func (c *claim) bring(ctx context.Context, files blob, dir string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	content, err := c.store.spooled(ctx, c.w.config.Times, files, maxFiles, dir)
	if err != nil {
		return "", err
	}
	defer content.Close()
	return unpack(ctx, content, dir, room{maxNames, maxRoom})
}

// end writes the run's outcome into its entry, unless somebody else did, and returns the outcome for the metrics.
func (c *claim) end(ctx context.Context, r report, t task, err, cause error) (how string) {
	if errors.Is(cause, errFenced) {
		c.settle(ctx)
		return "fenced"
	}
	if errors.Is(cause, errDrained) {
		if Repeatable(t.Request) && c.entry.Attempt < maxClaims { // nothing was lost
			back := c.entry
			back.State, back.Worker = Queued, ""
			if _, e := c.store.replace(ctx, c.run, back, c.revision); e == nil {
				_ = c.msg.Nak()
				c.out.changed()
				return "returned"
			}
			c.settle(ctx)
			return "fenced"
		}
		c.lose(ctx, fmt.Sprintf("worker %s went away before the code had ended", c.w.info.ID))
		return "lost"
	}
	switch {
	case r.Result != nil:
		how = string(r.Result.Outcome)
	case r.Field != nil:
		how = "refused"
	default:
		how = "error"
		if err != nil {
			r.Error = err.Error()
		}
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
	if errors.Is(e, errFenced) { // perhaps by this worker, whose request was repeated after a lost answer
		timed, cancel := context.WithTimeout(ctx, c.w.config.Times.Lease)
		if is, _, err := c.store.get(timed, c.run); err == nil && is.State == Ended && is.Worker == next.Worker &&
			is.Attempt == next.Attempt {
			e = nil
		}
		cancel()
	}
	if e != nil {
		c.w.log.Warn("a result was not taken", "run", c.run, "error", e)
		c.settle(ctx)
		return "fenced"
	}
	_ = c.msg.Ack()
	c.out.changed()
	return how
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
	c.out = c.outlet()
	c.out.changed()
}

// until repeats an operation until the connection is there, at most for the queue's own patience. After that another
// worker has the run.
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

// settle acknowledges the message of a run that is over. Otherwise the message belongs to the run's new worker.
func (c *claim) settle(ctx context.Context) {
	timed, cancel := context.WithTimeout(ctx, c.w.config.Times.Lease)
	defer cancel()
	if e, _, err := c.store.get(timed, c.run); err == nil && e.State.over() || errors.Is(err, jetstream.ErrKeyNotFound) {
		_ = c.msg.Ack()
	}
}

// ask sends a question to the submitter and returns the answer.
func (c *claim) ask(ctx context.Context, q question) (*nats.Msg, error) {
	q.Worker, q.Attempt = c.w.info.ID, c.entry.Attempt
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return c.queue.nc.RequestWithContext(ctx, subjectAsk+c.store.tenant+"."+c.run, text)
}
