// Package engine runs requests. It prepares a run, begins its record, gets a machine, runs the code in it, and finishes
// the record.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/internal/spans"
	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Purpose is what a run is for: a developer who inspects it, a session, or a build. The zero value is an ordinary run.
type Purpose struct {
	Debug   *DebugOptions
	Trace   *Trace
	Session Session        // that has the machine
	build   *install.Build // that the run makes
}

// Session is the session of a run. It starts a machine, or continues with a fork's or a paused one.
type Session interface {
	program.Supervisor
	// Prepare returns the run of a machine that continues. If begins is true, there is no such machine and no run.
	Prepare() (p Prepared, begins bool, err error)
	// Begin receives the grants of a session that begins, and adds the session's own denials.
	Begin(p *Prepared)
	// Record returns the record of a session that was paused, or nil if a new one begins.
	Record() *record.Run
	// ParentID returns the id of the session that this one was forked from, or "".
	ParentID() string
	// ImageDigest returns the digest of the machine's image, or "" if the machine is new.
	ImageDigest() string
	// Continue returns how to resume the machine, or nil if it is new.
	Continue() func(context.Context, machine.Spec, machine.Config) (*machine.Machine, error)
	// Traffic returns how many bytes its machines have sent and received so far.
	Traffic() (up, down int64)
	// Serve runs the machine until the session ends.
	Serve(ctx context.Context, x *Execution, conn *guest.Conn) error
	// Left reports whether another process, or a later one, takes the session over: its record is not finished then.
	Left() bool
	// Approver, Stand and KeepChanges are Approver, Hold and Keep of approval.Config; id is the record's.
	Approver() run.Approver
	Stand(ctx context.Context) (clock approval.Clock, release func(), err error)
	KeepChanges(id string, all []run.PolicyChange) error
}

// kind returns the name of its span.
func (p Purpose) kind() string {
	switch {
	case p.Session != nil:
		return "session"
	case p.build != nil:
		return "packages"
	case p.Debug != nil || p.Trace != nil:
		return "debug"
	}
	return "run"
}

// check returns an error if a run can't be inspected, or its machine can't be kept, as requested.
func (p Purpose) check(caller run.Caller, req catalog.Request, streams run.IO) error {
	if streams.Keep != nil && p.Trace != nil {
		return errors.New("a run that is traced is not kept")
	}
	if len(streams.Tools) > 0 && !caller.Ceiling.ClientTools() {
		return policy.Bad("clientTools", strings.Join(slices.Sorted(maps.Keys(streams.Tools)), ", "),
			"are functions of the caller, which %s does not allow (key clientTools)", caller.CeilingPath())
	}
	if req.Exposed() > 0 && streams.Capture != nil {
		return policy.Bad("secrets", "with a capture", "the capture would hold them")
	}
	var err error
	if streams.Keep != nil {
		err = checkKeep(streams.Keep, caller.Ceiling, req.Exposed())
	}
	if ref, e := req.Reference(); err == nil && e == nil && ref != "" && p.Trace != nil && p.Trace.Syscalls {
		err = policy.Bad("trace", "of system calls with "+ref, "is for the bundled images: strace in the image does it")
	}
	if err == nil && p.Trace != nil {
		err = p.Trace.check(caller.Ceiling, req.Exposed())
	}
	if err == nil && p.Debug != nil {
		err = p.Debug.check(caller.Ceiling, req.Exposed())
	}
	return err
}

var (
	// ErrClosed is the error of calls that would start something after Runtime.Close.
	ErrClosed = errors.New("the runtime is closed")
	// ErrSessionClosed is the cause if somebody ended the session.
	ErrSessionClosed = errors.New("the session was closed")
	// ErrLeft is the cause if the session left this process. A paused session stays on the disk.
	ErrLeft = errors.New("the process that holds the session ends")
)

// Engine runs requests. Any number of goroutines may use one.
type Engine struct {
	Home        string
	RequireJail []string // without which nothing runs
	Upstream    netstack.Upstream
	Fleet       Fleet           // that runs everything, or nil
	Events      func(run.Event) // of runs without a separate sink
	Images      *image.Store
	Runs        *record.Store
	History     *history.Store
	Journal     *audit.Journal
	Refusals    *runlog.Refusals
	Catalog     *catalog.Catalog
	Source      *machine.Source
	Installer   *install.Installer
	Meters      *spans.Meters
	Enter       func() (leave func(), err error)
	// WrapTools starts an MCP server of a ceiling in a machine of its own.
	WrapTools    func(context.Context, *policy.Ceiling, *policy.ToolServer, io.Writer) (*toolhost.Process, error)
	Grace        time.Duration // CollectGrace; tests shorten it
	ApprovalTime time.Duration // approval.Patience; tests shorten it
	Boots        bool          // no machine is a clone
	Brief        bool          // it ends with its run, which does not wait for templates that hold folders
}

// Run runs a request, and lets a developer look into its machine.
func (e *Engine) Run(ctx context.Context, caller run.Caller, req catalog.Request, streams run.IO, purpose Purpose,
) (*run.Result, error) {
	begin := time.Now()
	caller = caller.WithDefaults()
	leave, err := e.Enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, meter := e.Meters.Begin(ctx, begin, string(caller.Via), purpose.kind())
	res, err := e.execute(ctx, begin, caller, req, streams, purpose)
	meter.End(ctx, res)
	if res == nil && err != nil {
		e.Refusals.Note(e.Journal, audit.RunRefused, caller, err, req.Request)
	}
	return res, err
}

// RunBuild runs a request of a build. The caller receives no events of its machine.
func (e *Engine) RunBuild(ctx context.Context, by run.Caller, req catalog.Request, b *install.Build,
) (*run.Result, error) {
	return e.Run(ctx, by, req, run.IO{Events: func(run.Event) {}}, Purpose{build: b})
}

// execute runs a request to its end. A nil result means that it was refused before a record existed.
func (e *Engine) execute(ctx context.Context, begin time.Time, caller run.Caller, req catalog.Request, streams run.IO,
	purpose Purpose,
) (*run.Result, error) {
	if req.Check {
		req.Request = req.CheckOnly()
		streams.Stdin = nil
	}
	var err error
	if purpose.build == nil { // a build's machine gets only what its request brings
		if req, err = e.Catalog.ResolveCustom(req, caller.Ceiling); err != nil {
			return nil, err
		}
	}
	made, err := spans.Phase(ctx, e.Meters, "prepare", func(context.Context) (Prepared, error) {
		return e.Prepare(caller, req, streams, purpose)
	})
	if err != nil {
		return nil, err
	}
	defer made.Code.Close()
	// Only the granted secrets: the code does not have the others, and could find them
	// out by guesses.
	redactor, err := record.NewRedactor(made.Code.Redacted())
	if err != nil {
		return nil, policy.Bad("secrets", fmt.Sprintf("of %d names", len(made.Code.Secrets)), "%v", err)
	}
	var out *record.OutFolder // opened before the code runs, since a link may replace it
	if streams.Out != "" {
		if out, err = record.OpenOut(streams.Out, streams.OutReplace); err != nil {
			return nil, policy.Bad("out", streams.Out, "%v", err)
		}
		defer out.Close()
	}
	r := &recordedRun{engine: e, req: req, caller: caller, purpose: purpose, code: &made.Code, live: made.Live,
		granted: made.Granted, streams: streams, redactor: redactor, out: out}
	if err := r.begin(begin, made.Wanted); err != nil {
		return nil, err
	}
	err = r.attempt(ctx)
	if errors.Is(err, failure.ErrRetry) {
		err = r.retry(ctx)
	}
	err = r.deliver(err)
	r.res.Duration.Total = time.Since(begin)
	return r.res, r.conclude(ctx, err)
}

// recordedRun is a run from the beginning of its record to its end.
type recordedRun struct {
	engine   *Engine
	req      catalog.Request
	caller   run.Caller
	code     *program.Program
	live     *egress.LiveRules
	granted  run.Policy
	purpose  Purpose
	streams  run.IO
	redactor *record.Redactor
	out      *record.OutFolder // nil if nothing is copied

	rec    *record.Run
	log    *runlog.Log
	res    *run.Result
	before run.Result // before anything ran
}

// begin makes the record, and writes the grants into it.
func (r *recordedRun) begin(at time.Time, wanted run.Request) (err error) {
	s := r.purpose.Session
	if s != nil {
		r.rec = s.Record()
	}
	again := r.rec != nil
	if !again {
		r.rec, err = r.engine.History.Begin(at, r.caller, "", r.code.RecordName(), r.req.Request, wanted, r.granted,
			r.redactor)
	}
	if err != nil {
		return err
	}
	tell := r.streams.Events
	if tell == nil {
		tell = r.engine.Events
	}
	r.streams.Events = func(e run.Event) {
		e.RunID = r.rec.ID
		tell(e)
	}
	r.streams.Events(run.Event{Kind: run.EventRecord, Message: r.rec.ID})
	r.code.Tell = r.streams.Events
	if s != nil {
		r.rec.Session, r.rec.Parent = r.rec.ID, s.ParentID()
	}
	r.log = runlog.New(r.engine.Journal.Log, r.rec, r.caller.Via, r.redactor, r.streams.Events)
	r.log.Session = s != nil
	r.log.Started(r.granted, slices.Sorted(maps.Keys(r.streams.Tools)))
	r.res = &run.Result{RunID: r.rec.ID, MemoryMB: r.granted.Effective.MemoryMB, Redacted: r.rec.Redacted,
		Policy: r.granted}
	if again {
		r.res.PolicyChanges = slices.Clone(r.live.Taken)
	}
	r.before = *r.res
	return nil
}

// attempt runs the code once.
func (r *recordedRun) attempt(ctx context.Context) error {
	if err := r.log.Missing(r.granted.Effective); err != nil {
		r.res.Outcome, r.res.ExitCode = run.OutcomeFailed, run.ExitHost
		return err
	}
	x := &Execution{engine: r.engine, Code: r.code, Live: r.live, purpose: r.purpose,
		Granted: r.res.Policy.Effective, streams: r.streams, Rec: r.rec, Redactor: r.redactor, audit: r.log, Res: r.res,
		hostDir: r.caller.HostDir}
	if r.engine.Fleet != nil {
		return x.runElsewhere(ctx, r.req, r.caller.Name)
	}
	return x.run(ctx)
}

// retry runs the code again, on linux.
func (r *recordedRun) retry(ctx context.Context) error {
	r.before.Retried, r.before.PolicyChanges = r.res.Retried, r.res.PolicyChanges // they apply to the next machine, too
	*r.res = r.before
	r.streams.Events(run.Event{Kind: run.EventRetry, Message: r.res.Retried + "; running it again on linux"})
	r.res.Policy.Effective.Kernel = string(image.Linux)
	return r.attempt(ctx)
}

// deliver copies the artifacts out, and writes the run's end into the result.
func (r *recordedRun) deliver(err error) error {
	res := r.res
	if r.out != nil && len(res.Artifacts) > 0 {
		var e error
		if res.ArtifactsLeft, e = r.engine.Runs.CopyArtifacts(r.rec.ID, res.Artifacts, r.out); e != nil && err == nil {
			res.Outcome, res.ExitCode, err = run.OutcomeFailed, run.ExitHost, failure.Host("out", e)
		}
	}
	res.NoteUndelivered()
	var gone *run.GuestError
	if errors.As(err, &gone) { // it quotes the guest
		err = &run.GuestError{Reason: r.redactor.String(gone.Reason), Console: r.redactor.String(gone.Console)}
	}
	if err != nil {
		res.Error = err.Error()
	}
	res.Error = r.redactor.String(res.Error)
	return err
}

// fail makes the run fail because the host could not do something.
func (r *recordedRun) fail(err, as error) error {
	r.res.Outcome, r.res.ExitCode, r.res.Error = run.OutcomeFailed, run.ExitHost, err.Error()
	return as
}

// conclude finishes the record and the audit log. It leaves the record of a session that continues elsewhere.
func (r *recordedRun) conclude(ctx context.Context, err error) error {
	if s := r.purpose.Session; s != nil && s.Left() {
		r.rec.Status = record.Paused
		unsettled := r.rec.Settle() // before the audit log, which needs the room that this frees
		r.log.Shorten(unsettled)
		r.log.Left()
		return errors.Join(err, unsettled, r.log.Missing(r.granted.Effective), r.rec.Leave())
	}
	if e := r.rec.Err(); e != nil && err == nil { // the record has it, too
		err = r.fail(e, failure.Host("record", e))
	}
	_, e := spans.Phase(ctx, r.engine.Meters, "record", func(context.Context) (*run.Result, error) {
		return r.res, history.Finish(r.rec, r.redactor, r.res)
	})
	if e != nil && err == nil {
		err = r.fail(e, failure.Host("record", e))
	}
	r.log.Shorten(r.rec.Err())
	r.log.Ended(r.res, r.rec.Digest())
	planned := err == nil || errors.Is(err, ErrSessionClosed) || errors.Is(err, ErrLeft)
	if e := r.log.Missing(r.granted.Effective); e != nil && planned {
		err = r.fail(e, e)
	}
	r.engine.History.Bound(r.rec.ID, r.streams.Events)
	return err
}

// Prepared is a run with its request and its grants.
type Prepared struct {
	Code    program.Program
	Live    *egress.LiveRules // the rules of its network, which may change
	Wanted  run.Request       // as the record has it: the code in a file, paths of the guest
	Granted run.Policy
}

// Prepare checks a request and cuts it to the ceiling. A fork has its session's grants.
func (e *Engine) Prepare(caller run.Caller, req catalog.Request, streams run.IO, purpose Purpose,
) (p Prepared, err error) {
	if s := purpose.Session; s != nil {
		if p, begins, err := s.Prepare(); !begins {
			return p, err
		}
	}
	if err = e.Catalog.CheckCeiling(caller.Ceiling); err != nil {
		return p, err
	}
	if p.Code, err = program.Check(req); err == nil {
		err = purpose.check(caller, req, streams)
	}
	if err == nil && e.Fleet != nil {
		err = notElsewhere(streams, purpose)
	}
	if err != nil {
		return p, err
	}
	code := &p.Code
	code.On(streams)
	if purpose.Session != nil {
		code.Supervisor = purpose.Session
	}
	code.Layer = purpose.build != nil && purpose.build.Layer
	p.Live = &egress.LiveRules{Ceiling: caller.Ceiling, Fixed: purpose.build != nil}
	code.Attachable = caller.Ceiling.Debug()
	asked, granted, err := code.Grant(caller, req, e.RequireJail)
	if err == nil && e.Fleet != nil {
		err = NotAsked(granted.Effective)
	}
	if err != nil {
		code.Close()
		return p, err
	}
	p.Granted, p.Wanted = granted, req.Request
	p.Live.Begin(granted.Effective)
	p.Wanted.Code, p.Wanted.Files, p.Wanted.Dirs = "", asked.Files, asked.Dirs
	if !code.Command { // a command's folder is the image's
		p.Wanted.Path, p.Wanted.Dir = code.Path, code.Dir
	}
	p.Wanted.InlineFiles = history.NamesOnly(req.InlineFiles)
	if purpose.Session != nil {
		purpose.Session.Begin(&p)
	}
	return p, nil
}
