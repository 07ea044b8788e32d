package unitask

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

// MaxCode is the most source text a request may have, in bytes; Node itself
// refuses strings of 512 MiB.
const MaxCode = 64 << 20

// Run runs one request, in this order: resolve the policy, begin the record, get the image,
// open the network, get a machine, connect to the guest, run the code, finish the record.
func (rt *Runtime) Run(ctx context.Context, req Request, streams IO) (*Result, error) {
	return rt.RunFor(ctx, Caller{Ceiling: rt.opts.Ceiling}, req, streams)
}

// Caller identifies whom a run is for, where one runtime serves several callers. The same name
// is used everywhere: a ceiling's [principals.NAME] table narrows its policy, records have it
// as their owner, and logs as the caller.
type Caller struct {
	// Name goes into the record as its owner; "" is the user of this process
	// (LocalOwner).
	Name string
	// Via goes into the record: how the run was requested; "" is ViaAPI.
	Via record.Via
	// Ceiling limits what the caller gets; nil is no limit.
	Ceiling *policy.Ceiling
}

// How a run was requested.
const (
	ViaCLI  = record.ViaCLI
	ViaMCP  = record.ViaMCP
	ViaHTTP = record.ViaHTTP
	ViaAPI  = record.ViaAPI
)

// RunFor runs a request for a caller, under the caller's Ceiling in place of the runtime's.
func (rt *Runtime) RunFor(ctx context.Context, caller Caller, req Request, streams IO) (*Result, error) {
	return rt.runFor(ctx, caller, req, streams, nil)
}

// runFor runs a request, under a debugger where debug is not nil.
func (rt *Runtime) runFor(ctx context.Context, caller Caller, req Request, streams IO, debug *DebugOptions) (*Result, error) {
	begin := time.Now()
	caller = caller.withDefaults()
	leave, err := rt.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	code, err := checkCode(req)
	if err != nil {
		return nil, err
	}
	if streams.Keep != nil {
		if err := streams.Keep.check(caller.Ceiling, len(req.Secrets)); err != nil {
			return nil, err
		}
	}
	if streams.trace != nil {
		if err := streams.trace.check(caller.Ceiling, len(req.Secrets)); err != nil {
			return nil, err
		}
	}
	if len(req.Secrets) > 0 && streams.Capture != nil {
		return nil, &policy.FieldError{Field: "secrets", Value: "with a capture", Reason: "the capture would hold them"}
	}
	code.on(streams)
	defer code.inputs.Close()
	asked, eff, denials, err := req.resolve(caller.Ceiling, &code.inputs)
	if err != nil {
		return nil, err
	}
	if eff.RequireJail, err = policy.Jail(eff.RequireJail, rt.opts.RequireJail); err != nil {
		return nil, err
	}
	kernel, err := code.kernel(image.Kernel(eff.Kernel))
	if err == nil {
		kernel, err = kernelFor(kernel, &code.inputs)
	}
	if err != nil {
		return nil, err
	}
	eff.Kernel = string(kernel)
	code.secrets = map[string]string{}
	for _, name := range eff.Secrets {
		code.secrets[name] = req.Secrets[name]
	}
	// Of the granted secrets only: the code does not have the others, and could else
	// find out by guesses what they are.
	redactor, err := record.NewRedactor(code.secrets)
	if err != nil {
		return nil, &policy.FieldError{Field: "secrets", Value: fmt.Sprintf("of %d names", len(code.secrets)), Reason: err.Error()}
	}
	wanted := req // as the record has it: the code in a file of its own, paths as they are inside
	wanted.Code, wanted.Path, wanted.Dir, wanted.Files, wanted.Dirs = "", code.path, code.dir, asked.Files, asked.Dirs
	request, redacted := clean(redactor, wanted)
	text := redactor.String(req.Code)
	if text != req.Code {
		redacted = append(redacted, "code")
	}
	rec, err := rt.runs.Create(begin, caller.Name, caller.Via, "code"+path.Ext(code.path), []byte(text), request)
	if err != nil {
		return nil, hostError("record", fmt.Errorf("%w: UNITASK_HOME is %s", err, rt.opts.Home))
	}
	rec.Redacted = redacted
	rec.Effective, _ = clean(redactor, eff) // what a replay asks for, however this run ends
	rec.Denials, _ = clean(redactor, denials)
	if err := rec.Update(); err != nil {
		return nil, errors.Join(hostError("record", err), rec.Finish(time.Now()))
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
	res := &Result{RunID: rec.ID, MemoryMB: eff.MemoryMB, Redacted: redacted, Policy: Policy{Effective: eff, Denials: denials, Ceiling: caller.ceilingPath()}}

	code.debug, code.attachable = debug, caller.Ceiling.Debug()
	before := *res
	err = rt.run(ctx, code, eff, streams, rec, redactor, res)
	if errors.Is(err, errRetry) {
		before.Retried = res.Retried
		*res = before
		eff.Kernel, res.Policy.Effective.Kernel = string(image.Linux), string(image.Linux)
		streams.Events(Event{Kind: EventRetry, Message: res.Retried + "; running it again on linux"})
		err = rt.run(ctx, code, eff, streams, rec, redactor, res)
	}
	if streams.Out != "" && len(res.Artifacts) > 0 {
		var e error
		if res.ArtifactsLeft, e = rt.runs.CopyArtifacts(rec.ID, res.Artifacts, streams.Out, streams.OutReplace); e != nil && err == nil {
			res.Outcome, res.ExitCode, err = OutcomeFailed, ExitHost, hostError("out", e)
		}
	}
	res.Duration.Total = time.Since(begin)
	var gone *GuestError
	if errors.As(err, &gone) && redactor != nil { // it quotes the guest
		err = &GuestError{Reason: redactor.String(gone.Reason), Console: redactor.String(gone.Console)}
	}
	if err != nil {
		res.Error = err.Error()
	}
	res.Error = redactor.String(res.Error)
	if e := finish(rec, redactor, res); e != nil && err == nil {
		res.Outcome, res.ExitCode, res.Error = OutcomeFailed, ExitHost, e.Error()
		err = hostError("record", e)
	}
	rt.boundStore(rec.ID, streams.Events)
	return res, err
}

// boundStore keeps the store of runs within its bound. A failure to do so is not a failure of
// the run that has just ended.
func (rt *Runtime) boundStore(ended string, tell func(Event)) {
	if rt.opts.StoreBytes < 0 {
		return
	}
	freed, err := rt.runs.Bound(ended, cmp.Or(rt.opts.StoreBytes, record.DefaultStoreBytes))
	switch {
	case err != nil:
		tell(Event{Kind: EventStore, Message: err.Error()})
	case freed != record.Freed{}:
		tell(Event{Kind: EventStore, Message: freed.String()})
	}
}

// ceilingPath names the ceiling's file, "" where there is none.
func (c Caller) ceilingPath() string {
	if c.Ceiling == nil {
		return ""
	}
	return c.Ceiling.Path
}

// run does what needs a machine, and fills in res.
func (rt *Runtime) run(ctx context.Context, code program, eff policy.Effective, streams IO, rec *record.Run, redactor *record.Redactor, res *Result) (failed error) {
	start := time.Now()
	res.Outcome, res.ExitCode = OutcomeFailed, ExitHost
	images := rt.images
	if streams.trace != nil && streams.trace.Syscalls {
		images = images.Tracing()
	}
	im, err := rt.ensureImage(ctx, images, image.Kernel(eff.Kernel), code.arch)
	if err != nil {
		return rt.classify(ctx, res, "image", err)
	}
	res.Kernel = im.Kernel
	res.Policy.Effective.Kernel = string(im.Kernel)

	network, relayed := rt.networkConfig(eff)
	network.Log = func(d netstack.Decision) {
		line, _ := clean(redactor, d)
		rec.Netlog(line)
	}
	network.Capture = netstack.NewCapture(streams.Capture)
	serial := redactor.Writer(rec.Console())
	defer serial.Close()
	code.relayed = relayed
	spec, err := rt.source.Spec(ctx, im, eff.MemoryMB, code.fresh)
	if err != nil {
		return rt.classify(ctx, res, "boot", err)
	}
	var console io.Writer = serial
	if code.debug != nil && code.debug.Serial != nil {
		console = io.MultiWriter(code.debug.Serial, serial)
	}
	var traced *machine.Trace
	if streams.trace != nil {
		tr, err := streams.trace.begin(rec, redactor)
		if err != nil {
			return rt.classify(ctx, res, "trace", err)
		}
		defer tr.end()
		traced = &tr.Trace
	}
	cfg := machine.Config{Trace: traced, Network: network, Console: console, Events: func(e machine.Event) { streams.Events(Event{Kind: e.Kind, Message: e.Message}) }}
	get := rt.source.Get
	limit := eff.Timeout
	kept := &holding{keep: streams.Keep, tell: streams.Events}
	// introduce writes down what the machine is, and lets consoles join it until leave.
	introduce := func(m *machine.Machine) (leave func(), err error) {
		res.Accelerator, res.Cloned, res.Pooled = m.Spec.Accel, m.Origin != machine.Booted, m.Origin == machine.Pooled
		rec.Machine = describe(m)
		rec.Effective, _ = clean(redactor, res.Policy.Effective)
		rec.Denials, _ = clean(redactor, res.Policy.Denials)
		rec.Machine.Debugged = code.debug != nil
		if err := rec.Update(); err != nil {
			return nil, err
		}
		if !code.attachable {
			return func() {}, nil
		}
		return rt.attachable(rec, m, len(code.secrets) > 0, redactor, kept.release), nil
	}
	switch {
	case code.debug != nil && code.debug.NoJail && len(eff.RequireJail) > 0:
		return rt.classify(ctx, res, "jail", &JailError{vmm.Jail{}.Lacks(eff.RequireJail)})
	case code.debug != nil:
		cfg.Debug = &machine.Debug{GDB: code.debug.GDB, NoJail: code.debug.NoJail, Started: code.debug.Started}
		if spec, err = rt.source.Probe(ctx, spec); err != nil {
			return rt.classify(ctx, res, "boot", err)
		}
		get, limit = rt.source.BootOnce, debugTime
	case traced != nil:
		get = rt.source.Boot
	case streams.Keep != nil:
		get = rt.source.Boot // a template's machine has a device to end QEMU with
		cfg.Keep = func(m *machine.Machine, why error) {
			if leave, err := introduce(m); err == nil {
				ctx = kept.hold(ctx, m, rec, redactor.String(why.Error()))
				leave()
			}
		}
	case code.cold || rt.opts.Machines.booted:
		get = rt.source.Boot
	default:
		defer func() {
			if failed == nil {
				rt.source.Warm(spec)
			}
		}()
	}
	var m *machine.Machine
	var conn *guest.Conn
	var booted time.Time
	for conn == nil {
		if m, err = get(ctx, spec, cfg); err != nil {
			return rt.classify(ctx, res, "boot", err)
		}
		defer m.Close()
		if weak := m.Jail().Weakness(); weak != "" {
			streams.Events(Event{Kind: EventJail, Message: "QEMU is not held as it should be: " + weak})
		}
		leave, err := introduce(m)
		if err != nil {
			return rt.classify(ctx, res, "record", err)
		}
		defer leave()
		if lacks := m.Jail().Lacks(eff.RequireJail); len(lacks) > 0 {
			return rt.classify(ctx, res, "jail", &JailError{lacks})
		}
		booted = time.Now()
		res.Duration.Boot = booted.Sub(start)
		conn, err = m.Connect(ctx, code.inputs.Patience(), code.put)
		refused := errors.As(err, new(*guest.ContentError)) || errors.As(err, new(*policy.FieldError))
		if err != nil && (m.Origin == machine.Booted || ctx.Err() != nil || refused) {
			if !refused && kept.wants(ctx, m) {
				ctx = kept.hold(ctx, m, rec, redactor.String(m.Explain(err).Error()))
			}
			return rt.classify(ctx, res, "connect", m.Explain(err))
		}
		if err != nil { // a clone that does not answer: this run boots, and so do the next ones
			m.Close()
			m.Unfit(err)
			streams.Events(Event{Kind: EventRetry, Message: "the clone does not answer: " + err.Error() + "; booting instead"})
			get = rt.source.Boot
		}
	}
	defer conn.Close()
	streams.Events(Event{Kind: EventStarted, Message: ""})
	started := time.Now()
	res.Duration.Connect = started.Sub(booted)

	first := mayRetry(code, eff, im, streams)
	stdout := newCapped(eff.OutputBytes, rec.Stdout(), streams.Stdout)
	stderr := newCapped(eff.OutputBytes, rec.Stderr(), streams.Stderr)
	timed, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	plainOut, plainErr := redactor.Writer(stdout), redactor.Writer(stderr)
	if first != nil {
		watched, retry := context.WithCancelCause(timed)
		timed = watched
		var watching sync.WaitGroup
		watching.Go(func() { first.watch(m, retry, watched.Done()) })
		defer watching.Wait()
		defer retry(nil)
	}
	end, err := conn.Stream(timed, streams.Stdin, first.writer(plainOut), first.writer(plainErr))
	m.Cut() // a guest that lies about its end gets no further
	err = errors.Join(err, plainOut.Close(), plainErr.Close())
	res.Duration.Run = time.Since(started)
	if errors.Is(err, errRetry) || err == nil && first.ended(m, end.Code|end.Signal) {
		m.Close()
		res.Retried = fmt.Sprintf("on the %s kernel the code asked for %s, which it does not have", im.Kernel, m.Lacks())
		return errRetry
	}
	crashed := lost(err)
	if errors.Is(err, guest.ErrGone) {
		end, err = m.Afterlife(ctx, err)
	}
	if crashed && kept.wants(ctx, m) {
		if err == nil { // the kernel has said how
			res.ended(end, stderr.tail.String())
			ctx = kept.hold(ctx, m, rec, res.Error)
		} else {
			ctx = kept.hold(ctx, m, rec, redactor.String(m.Explain(err).Error()))
		}
	}
	if err == nil && end.Out && eff.MaxArtifacts > 0 {
		err = collect(ctx, started.Add(limit+rt.grace), conn, rec.Artifacts(eff.MaxArtifacts, redactor), res)
	}
	m.Close() // the machine is gone before anything is said of its end
	lacks := m.Lacks()
	defer func() {
		if lacks != "" && res.ExitCode != 0 {
			res.Hint = fmt.Sprintf("the code asked for %s, which the %s kernel does not have: --kernel linux does", lacks, im.Kernel)
		}
	}()
	res.Stdout, res.Stderr = stdout.bytes(), stderr.bytes()
	res.Truncated = stdout.truncated || stderr.truncated
	rec.Drops, _ = json.Marshal(m.Drops())
	if err := network.Capture.Err(); err != nil {
		streams.Events(Event{Kind: EventCapture, Message: err.Error()})
	}
	if err != nil {
		return rt.classify(ctx, res, "run", m.Explain(err))
	}
	res.ended(end, stderr.tail.String())
	if name := node.MissingModule(stderr.tail.String()); name != "" && res.ExitCode != 0 {
		res.Hint = fmt.Sprintf("%s is not in the machine: what lies beside the code, and node_modules, come with --project, or by --dir", name)
	}
	return nil
}

// describe is the record's description of a machine.
func describe(m *machine.Machine) *record.Machine {
	im := m.Spec.Image
	jail, _ := json.Marshal(m.Jail())
	return &record.Machine{
		Kernel: string(im.Kernel), KernelVersion: im.Version, Node: im.Node, Arch: string(im.Arch), ImageDigest: im.Digest,
		Accelerator: string(m.Spec.Accel), QEMU: m.Spec.QEMU.Version, Jail: jail, MemoryMB: m.Spec.MemoryMB,
		Cloned: m.Origin != machine.Booted, Pooled: m.Origin == machine.Pooled,
	}
}

// debugTime is the time limit of code in a machine that may stand still.
const debugTime = 24 * time.Hour

// collectGrace is how much longer than its time limit a run may last while its
// artifacts are sent: code that ends just in time loses nothing. A guest that lies
// about its end wins that much. The default's 64 MiB take some 4 s under TCG.
const collectGrace = 15 * time.Second

// collect takes what the code left in /out, until the deadline. If not all of it came, the run
// has no error: the result says so.
func collect(ctx context.Context, deadline time.Time, conn *guest.Conn, to *record.Artifacts, res *Result) error {
	timed, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := conn.Collect(timed, to)
	if e := to.Close(err == nil); e != nil && err == nil {
		err = e
	}
	slices.SortFunc(to.Kept, func(a, b record.Artifact) int { return strings.Compare(a.Path, b.Path) })
	res.Artifacts, res.ArtifactsRefused = to.Kept, to.Refused
	if ctx.Err() == nil && (errors.Is(err, guest.ErrGone) || timed.Err() != nil) {
		res.ArtifactsRefused = append(res.ArtifactsRefused, record.Refusal{Path: outDir, Reason: "not all of it came: " + err.Error()})
		return nil
	}
	if errors.Is(err, record.ErrEnough) {
		return nil
	}
	return err
}

// ended fills in how the code ended by itself.
func (r *Result) ended(end guest.End, stderrTail string) {
	switch {
	case end.OOM || node.OutOfMemory(end.Signal, stderrTail):
		r.Outcome, r.ExitCode, r.OOM, r.Error = OutcomeOOM, ExitOOM, true, outOfMemory(r.MemoryMB)
	case end.Signal != 0:
		r.Outcome, r.ExitCode, r.Error = OutcomeSignaled, exitSignal+end.Signal, fmt.Sprintf("the code was ended by signal %d", end.Signal)
	default:
		r.Outcome, r.ExitCode = OutcomeExited, end.Code
	}
}

// classify turns an error into the outcome that it means; it returns nil for a
// time-out, which is a result.
func (rt *Runtime) classify(ctx context.Context, res *Result, op string, err error) error {
	var gone *GuestError
	switch {
	case errors.Is(err, errTimeout):
		res.Outcome, res.ExitCode, res.TimedOut = OutcomeTimeout, ExitTimeout, true
		res.Error = fmt.Sprintf("time limit of %g s reached; --timeout gives more", res.Policy.Effective.Timeout.Seconds())
		return nil
	case ctx.Err() != nil:
		res.Outcome, res.ExitCode = OutcomeCancelled, ExitCancelled
		return fmt.Errorf("cancelled: %w", context.Cause(ctx))
	case errors.As(err, &gone):
		res.Outcome, res.ExitCode = OutcomeCrashed, ExitHost
		return err
	}
	res.Outcome, res.ExitCode = OutcomeFailed, ExitHost
	if errors.As(err, new(*guest.ContentError)) {
		op = "files"
	}
	return hostError(op, err)
}

// clean is a value as the record may hold it, and where secrets stood in it.
func clean(redactor *record.Redactor, v any) (json.RawMessage, []string) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, nil
	}
	return redactor.JSON(text)
}

// finish completes the record.
func finish(rec *record.Run, redactor *record.Redactor, res *Result) error {
	rec.Status = record.Done
	if res.Outcome == OutcomeFailed {
		rec.Status = record.Failed
	}
	rec.Error = res.Error
	brief := *res
	brief.Stdout, brief.Stderr = nil, nil // in files of their own
	rec.Result, _ = clean(redactor, brief)
	return rec.Finish(time.Now())
}

// ensureImage returns the image for a kernel, fetching and building what is missing.
func (rt *Runtime) ensureImage(ctx context.Context, images *image.Store, kernel image.Kernel, arch image.Arch) (*image.Image, error) {
	if kernel == "" {
		kernel = images.Best(arch)
	}
	im, err := images.Obtain(ctx, kernel, arch)
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w: UNITASK_HOME is %s", err, rt.opts.Home)
	}
	return im, err
}
