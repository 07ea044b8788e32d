package unitask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Run runs one request, in this order: resolve the policy, begin the record, get the image,
// open the network, get a machine, connect to the guest, run the code, finish the record.
func (rt *Runtime) Run(ctx context.Context, req Request, streams IO) (*Result, error) {
	return rt.RunFor(ctx, Caller{Ceiling: rt.opts.Ceiling}, req, streams)
}

// RunFor runs a request for a caller, under the caller's Ceiling in place of the runtime's.
func (rt *Runtime) RunFor(ctx context.Context, caller Caller, req Request, streams IO) (*Result, error) {
	return rt.runFor(ctx, caller, catalog.Request{Request: req}, streams, inspection{})
}

// inspection is how a developer looks into a run's machine, which is booted for it. The zero
// value is an ordinary run.
type inspection struct {
	debug   *DebugOptions
	trace   *Trace
	session *Session // the machine is a session's
	build   *build   // it installs packages
}

// check says why a run can't be inspected, or its machine kept, as it is asked.
func (i inspection) check(caller Caller, req catalog.Request, streams IO) error {
	if streams.Keep != nil && i.trace != nil {
		return errors.New("a run that is traced is not kept")
	}
	if req.Exposed() > 0 && streams.Capture != nil {
		return policy.Bad("secrets", "with a capture", "the capture would hold them")
	}
	var err error
	if streams.Keep != nil {
		err = checkKeep(streams.Keep, caller.Ceiling, req.Exposed())
	}
	if ref, e := req.Reference(); err == nil && e == nil && ref != "" && i.trace != nil && i.trace.Syscalls {
		err = policy.Bad("trace", "of system calls with "+ref, "is for the images that come along: strace in the image does it")
	}
	if err == nil && i.trace != nil {
		err = i.trace.check(caller.Ceiling, req.Exposed())
	}
	if err == nil && i.debug != nil {
		err = i.debug.check(caller.Ceiling, req.Exposed())
	}
	return err
}

// runFor runs a request, and lets a developer look into its machine.
func (rt *Runtime) runFor(ctx context.Context, caller Caller, req catalog.Request, streams IO, look inspection) (*Result, error) {
	begin := time.Now()
	caller = caller.WithDefaults()
	leave, err := rt.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, meter := rt.meters.run(ctx, begin, string(caller.Via), look)
	res, err := rt.made(ctx, begin, caller, req, streams, look)
	meter.end(ctx, res)
	if res == nil && err != nil {
		rt.AuditRefusal(audit.RunRefused, caller, err, req.Secrets)
	}
	return res, err
}

// made is a run made; without a result it was refused before it had a record.
func (rt *Runtime) made(ctx context.Context, begin time.Time, caller Caller, req catalog.Request, streams IO, look inspection) (*Result, error) {
	if req.Check {
		req.Request = req.CheckOnly()
		streams.Stdin = nil
	}
	var err error
	if look.build == nil { // whose machine has nothing but what comes along
		if req, err = rt.catalog.ResolveCustom(req, caller.Ceiling); err != nil {
			return nil, err
		}
	}
	made, err := phase(ctx, rt.meters, "prepare", func(context.Context) (prepared, error) { return rt.prepare(caller, req, streams, look) })
	if err != nil {
		return nil, err
	}
	code, wanted, granted := made.code, made.wanted, made.granted
	defer code.close()
	// Of the granted secrets only: the code does not have the others, and could else
	// find out by guesses what they are.
	redactor, err := record.NewRedactor(code.redacted())
	if err != nil {
		return nil, policy.Bad("secrets", fmt.Sprintf("of %d names", len(code.secrets)), "%v", err)
	}
	var out *record.OutFolder // as it is before the code runs: a link may take its place
	if streams.Out != "" {
		if out, err = record.OpenOut(streams.Out, streams.OutReplace); err != nil {
			return nil, policy.Bad("out", streams.Out, "%v", err)
		}
		defer out.Close()
	}
	var rec *record.Run
	if s := code.session; s != nil && s.revived != nil {
		rec, s.revived.taken = s.revived.rec, true
	} else if rec, err = rt.history.Begin(begin, caller, code.recordName(), req.Request, wanted, granted, redactor); err != nil {
		return nil, err
	}
	tell := streams.Events
	if tell == nil {
		tell = rt.opts.Events
	}
	streams.Events = func(e Event) {
		e.RunID = rec.ID
		tell(e)
	}
	streams.Events(Event{Kind: EventRecord, Message: rec.ID})
	code.tell = streams.Events

	if code.session != nil {
		rec.Session, rec.Parent = rec.ID, code.session.Parent
	}
	logged := rt.audited(rec, caller.Via, redactor, streams.Events)
	logged.session = code.session != nil
	logged.started(granted)

	res := &Result{RunID: rec.ID, MemoryMB: granted.Effective.MemoryMB, Redacted: rec.Redacted, Policy: granted}
	if code.session != nil && code.session.revived != nil {
		res.PolicyChanges = slices.Clone(code.living.taken)
	}
	once := func() error {
		if err := logged.missing(granted.Effective); err != nil {
			res.Outcome, res.ExitCode = OutcomeFailed, ExitHost
			return err
		}
		x := &execution{rt: rt, code: &code, look: look, granted: res.Policy.Effective, streams: streams, rec: rec, redactor: redactor, audit: logged, res: res}
		if rt.opts.Fleet != nil {
			return x.runElsewhere(ctx, req, caller.Name)
		}
		return x.run(ctx)
	}
	before := *res
	err = once()
	if errors.Is(err, errRetry) {
		before.Retried = res.Retried
		*res = before
		streams.Events(Event{Kind: EventRetry, Message: res.Retried + "; running it again on linux"})
		res.Policy.Effective.Kernel = string(image.Linux)
		err = once()
	}
	if out != nil && len(res.Artifacts) > 0 {
		var e error
		if res.ArtifactsLeft, e = rt.runs.CopyArtifacts(rec.ID, res.Artifacts, out); e != nil && err == nil {
			res.Outcome, res.ExitCode, err = OutcomeFailed, ExitHost, run.AsHostError("out", e)
		}
	}
	res.NoteUndelivered()
	res.Duration.Total = time.Since(begin)
	var gone *GuestError
	if errors.As(err, &gone) && redactor != nil { // it quotes the guest
		err = &GuestError{Reason: redactor.String(gone.Reason), Console: redactor.String(gone.Console)}
	}
	if err != nil {
		res.Error = err.Error()
	}
	res.Error = redactor.String(res.Error)
	if s := code.session; s != nil && (s.left || s.revived != nil && s.ID == "") { // it does not go on here
		rec.Status = record.Paused
		unsettled := rec.Settle() // before the audit log, which needs the room that this gives back
		logged.shorten(unsettled)
		logged.left()
		return res, errors.Join(err, unsettled, logged.missing(granted.Effective), rec.Leave())
	}
	if e := rec.Err(); e != nil && err == nil { // as its record is to say
		res.Outcome, res.ExitCode, res.Error = OutcomeFailed, ExitHost, e.Error()
		err = run.AsHostError("record", e)
	}
	if _, e := phase(ctx, rt.meters, "record", func(context.Context) (*Result, error) { return res, history.Finish(rec, redactor, res) }); e != nil && err == nil {
		res.Outcome, res.ExitCode, res.Error = OutcomeFailed, ExitHost, e.Error()
		err = run.AsHostError("record", e)
	}
	logged.shorten(rec.Err())
	logged.ended(res)
	if e := logged.missing(granted.Effective); e != nil && (err == nil || errors.Is(err, errSessionClosed) || errors.Is(err, errEnds)) {
		res.Outcome, res.ExitCode, res.Error = OutcomeFailed, ExitHost, e.Error()
		err = e
	}
	rt.history.Bound(rec.ID, streams.Events)
	return res, err
}

// prepared is a run as it was asked for and granted.
type prepared struct {
	code    program
	wanted  Request // as the record has it: the code in a file of its own, paths as they are inside
	granted Policy
}

// prepare checks a request and holds it against the ceiling. A fork is what its session was.
func (rt *Runtime) prepare(caller Caller, req catalog.Request, streams IO, look inspection) (p prepared, err error) {
	if s := look.session; s != nil && s.from != nil {
		s.made = s.from.run(s)
		return s.made, nil
	}
	if s := look.session; s != nil && s.revived != nil {
		s.made, err = s.revived.prepare(rt, s)
		return s.made, err
	}
	if err = rt.catalog.CheckCeiling(caller.Ceiling); err != nil {
		return p, err
	}
	if p.code, err = checkCode(req); err == nil {
		err = look.check(caller, req, streams)
	}
	if err == nil && rt.opts.Fleet != nil {
		err = notElsewhere(streams, look)
	}
	if err != nil {
		return p, err
	}
	code := &p.code
	code.on(streams)
	code.session = look.session
	code.layer = look.build != nil && look.build.layer
	code.living = &living{ceiling: caller.Ceiling, fixed: look.build != nil}
	code.attachable = caller.Ceiling.Debug()
	asked, granted, err := rt.grant(caller, req, code)
	if err == nil && rt.opts.Fleet != nil {
		err = notAsked(granted.Effective)
	}
	if err != nil {
		code.close()
		return p, err
	}
	if look.session != nil {
		granted.Denials = append(granted.Denials, look.session.denials...)
	}
	p.granted, p.wanted = granted, req.Request
	p.wanted.Code, p.wanted.Files, p.wanted.Dirs = "", asked.Files, asked.Dirs
	if !code.command { // whose folder is the image's
		p.wanted.Path, p.wanted.Dir = code.path, code.dir
	}
	p.wanted.Neighbours = history.NamesOnly(req.Neighbours)
	if look.session != nil {
		look.session.made = p
	}
	return p, nil
}

// grant resolves what a request asks for against the caller's ceiling, and gives the code
// its secrets.
func (rt *Runtime) grant(caller Caller, req catalog.Request, code *program) (asked policy.Request, granted Policy, err error) {
	asked, eff, denials, err := resolve(req, caller.Ceiling, &code.inputs)
	if err != nil {
		return asked, granted, err
	}
	if eff.RequireJail, err = policy.Jail(eff.RequireJail, rt.opts.RequireJail); err != nil {
		return asked, granted, err
	}
	if eff.Image == "" {
		return asked, granted, imageDenied(asked.Image, denials)
	}
	kernel, err := code.kernel(image.Kernel(eff.Kernel))
	if err == nil {
		kernel, err = kernelFor(kernel, &code.inputs)
	}
	if err != nil {
		return asked, granted, err
	}
	eff.Kernel = string(kernel)
	if err := code.give(eff, req.Secrets); err != nil {
		return asked, granted, err
	}
	return asked, Policy{Effective: eff, Denials: denials, Ceiling: caller.CeilingPath()}, nil
}

// imageDenied says why nothing runs with an image.
func imageDenied(name string, denials []policy.Denial) error {
	for _, d := range denials {
		if d.Field == "image" {
			return policy.Bad("image", name, "%s by %s (key %s)", d.Reason, d.Rule, d.Key)
		}
	}
	return policy.Bad("image", name, "is not granted")
}
