package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/hints"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/internal/spans"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
	"github.com/unitask/unitask/vmm"
)

// Execution is the part of a run that needs a machine. A run has one, or two if it is repeated
// on another kernel (Request.KernelRetry).
type Execution struct {
	engine   *Engine
	Code     *program.Program
	Live     *egress.LiveRules
	purpose  Purpose
	Granted  policy.Effective
	streams  run.IO
	Rec      *record.Run
	Redactor *record.Redactor
	audit    *runlog.Log
	Res      *run.Result // Run fills it in

	// How it gets its machine (plan).
	start   time.Time
	Image   *image.Image
	Spec    machine.Spec
	Config  machine.Config
	get     func(context.Context, machine.Spec, machine.Config) (*machine.Machine, error)
	limit   time.Duration // of the code
	warm    bool          // the next ones like it are cloned
	kept    holding
	clock   *stopclock.Clock // of the code's time
	Asked   *approval.Asker
	Machine *machine.Machine
	failed  hints.Connections
	left    *guest.Left
	hostDir string // Caller.HostDir
	detach  func() // nil while no console may join
	undo    []func()
}

// Run fills in the result. A run that reached its time limit has no error.
func (x *Execution) run(ctx context.Context) error {
	defer x.close()
	x.clock, x.start = new(stopclock.Clock), time.Now()
	x.Res.Outcome, x.Res.ExitCode = run.OutcomeFailed, run.ExitHost
	_, err := spans.Phase(ctx, x.engine.Meters, "image",
		func(ctx context.Context) (*image.Image, error) { return x.Image, x.plan(ctx) })
	var conn *guest.Conn
	if err == nil {
		x.Code.Compiled = x.compilation()
		defer x.Code.Compiled.Close()
		conn, err = x.connect(ctx)
	}
	if err == nil {
		err = x.converse(ctx, conn)
		x.Res.Compiled = x.Code.Compiled.Outcome()
	}
	if err != nil {
		err = x.classify(ctx, err)
	}
	if err == nil || errors.Is(err, ErrSessionClosed) {
		x.WarmNext()
	}
	return err
}

// WarmNext makes a template, once, so that later runs of the same class are clones.
func (x *Execution) WarmNext() {
	if !x.warm {
		return
	}
	x.warm = false
	spec := x.Spec
	if x.engine.Brief {
		spec.Folders = nil
	}
	x.engine.Source.Warm(spec)
}

// close closes what was opened, the last first.
func (x *Execution) close() {
	for _, undo := range slices.Backward(x.undo) {
		undo()
	}
}

func (x *Execution) Later(undo func()) { x.undo = append(x.undo, undo) }

// plan gets the image and chooses how the run gets its machine.
func (x *Execution) plan(ctx context.Context) error {
	if err := x.resolveImage(ctx); err != nil {
		return err
	}
	if err := x.install(ctx); err != nil {
		return err
	}
	x.Res.Kernel = x.Image.Kernel
	x.Res.Policy.Effective.Kernel = string(x.Image.Kernel)
	if cpus := x.Granted.CPUs; cpus != math.Trunc(cpus) {
		if err := vmm.CanShareProcessor(); err != nil {
			return failure.At("cpus", policy.Bad("cpus", strconv.FormatFloat(cpus, 'f', -1, 64), "%v", err))
		}
	}
	var err error
	if x.Spec, err = x.engine.Source.Spec(ctx, x.Image,
		machine.Class{MemoryMB: x.Granted.MemoryMB, CPUs: x.Granted.CPUs, FreshProcess: x.Code.Fresh}); err != nil {
		return failure.At("boot", err)
	}
	if err := x.hardware(); err != nil {
		return failure.At("boot", err)
	}
	if x.purpose.Session != nil && machine.CanClone {
		x.Spec.Life = machine.Lasting
	}
	if err := x.configure(); err != nil {
		return err
	}
	if err := x.openTools(ctx); err != nil {
		return err
	}
	return x.chooseMachine(ctx)
}

// resolveImage finds the image, and builds it if it is missing.
func (x *Execution) resolveImage(ctx context.Context) error {
	images := x.engine.Images
	if x.purpose.Trace != nil && x.purpose.Trace.Syscalls {
		images = images.Tracing()
	}
	if err := x.importedName(); err != nil {
		return failure.At("image", err)
	}
	var contained *image.Container
	var err error
	if o := x.Code.Custom; o.Missing() {
		if o, err = x.engine.Catalog.Build(ctx, o, x.Live.Ceiling.Reaching(), x.streams.Events); err != nil {
			return failure.At("image", err)
		}
		x.Code.Custom, x.Code.Image = o, &o.Row
	}
	if p := x.Code.Image.Payload; p.Container {
		x.Image, contained, err = x.engine.Catalog.Ensure(ctx, images, p.Name, image.Kernel(x.Granted.Kernel), x.Code.Arch)
	} else { // not by its name: a build's image is the bundled one, even if a custom image hides it
		x.Image, err = x.engine.Catalog.Obtain(ctx, images.With(p), image.Kernel(x.Granted.Kernel), x.Code.Arch)
	}
	if err != nil {
		return failure.At("image", err)
	}
	if s := x.purpose.Session; s != nil && s.ImageDigest() != "" { // on the same image as before, if it still exists
		if then, err := images.ByDigest(s.ImageDigest()); err == nil && then.Kernel == x.Image.Kernel &&
			then.Arch == x.Image.Arch {
			x.Image = then
		}
	}
	if contained != nil && contained.Custom != nil {
		return failure.At("image", policy.Bad("image", x.Code.Image.Payload.Name,
			"is no container's image: it is a custom one that another host shipped, and is named by its whole digest"))
	}
	if contained != nil {
		if err := x.Code.Adopt(contained); err != nil {
			return failure.At("image", err)
		}
	}
	return nil
}

// chooseMachine chooses how to get the machine: a clone, a boot, or one that exists.
func (x *Execution) chooseMachine(ctx context.Context) error {
	x.kept.keep, x.kept.tell = x.streams.Keep, x.streams.Events
	x.get, x.limit = x.engine.Source.Get, x.Granted.Timeout
	switch debug := x.purpose.Debug; {
	case x.resumed():
		x.get = x.purpose.Session.Continue()
	case debug != nil:
		if debug.NoJail && len(x.Granted.RequireJail) > 0 {
			return failure.At("jail", &run.JailError{Lacks: vmm.Jail{}.Lacks(x.Granted.RequireJail)})
		}
		x.Config.Debug = &machine.Debug{GDB: debug.GDB, NoJail: debug.NoJail, Started: debug.Started}
		var err error
		if x.Spec, err = x.engine.Source.Probe(ctx, x.Spec); err != nil {
			return failure.At("boot", err)
		}
		x.get, x.limit = x.engine.Source.BootOnce, debugTime
	case x.purpose.Trace != nil:
		x.get = x.engine.Source.Boot
	case x.streams.Keep != nil:
		x.get = x.engine.Source.Boot // a template's machine has a device that ends QEMU
		x.Config.Keep = func(m *machine.Machine, why error) {
			if err := x.publish(m); err == nil {
				x.hold(ctx, m, why.Error())
				x.Detach()
			}
		}
	case x.Code.Cold || x.engine.Boots:
		x.get = x.engine.Source.Boot
	default:
		x.warm = true
		if machine.CanClone && !x.Code.Fresh {
			if steady := x.Code.Inputs.Steady(); steady != nil {
				x.Spec.Folders = Folders{steady}
			}
		}
	}
	return nil
}

// hardware returns an error if hardware virtualization is required, and this host has none that works.
func (x *Execution) hardware() error {
	if !x.Granted.RequireHardware || x.Spec.Accel != vmm.TCG {
		return nil
	}
	why := cmp.Or(x.engine.Source.WhySlow(x.Spec), "the accelerator tcg was chosen")
	return policy.Bad("requireHardware", "true", "and this host has no hardware virtualization that works: %s", why)
}

// importedName returns an error if a ceiling lists images and somebody imported this one under its name: a ceiling
// lists images by their registries.
func (x *Execution) importedName() error {
	name := x.Code.Image.Payload.Name
	ref, is, _ := policy.Reference(name)
	if !is || !x.Live.Ceiling.Bounds("images") {
		return nil
	}
	if c, err := x.engine.Images.Containers().Get(x.Code.Arch, ref); err == nil && c.ImportedAs(ref) {
		return policy.Bad("image", name,
			"was imported under that name, and a ceiling's images are those that were pulled: pull it, or list %s", c.Digest)
	}
	return nil
}

// resumed reports whether the machine ran before: it belongs to a session that was forked or revived.
func (x *Execution) resumed() bool {
	return x.purpose.Session != nil && x.purpose.Session.Continue() != nil
}

// begin makes the guest start the code, or continue it.
func (x *Execution) begin(ctx context.Context, m *machine.Machine) (*guest.Conn, error) {
	if x.resumed() {
		return m.Rejoin(ctx)
	}
	part := hostfiles.All
	if m.Spec.Folders != nil { // the machine has them already
		part = hostfiles.AllButSteady
	}
	return m.Connect(ctx, x.Code.Inputs.Patience()+x.Code.Compiled.Patience(),
		func(ctx context.Context, conn *guest.Conn) error {
			x.Code.Processes = x.Granted.MaxProcesses
			return x.Code.Put(ctx, conn, part)
		})
}

// publish writes the machine into the record, and lets consoles join it until Detach.
func (x *Execution) publish(m *machine.Machine) error {
	x.Res.Accelerator, x.Res.Cloned, x.Res.Pooled = m.Spec.Accel, m.Origin != machine.Booted, m.Origin == machine.Pooled
	x.Rec.Machine = describe(m)
	x.Res.WhySlow = x.engine.Source.WhySlow(m.Spec)
	x.Rec.Machine.WhySlow = x.Res.WhySlow
	x.Rec.Effective, _ = x.Redactor.Marshal(x.Res.Policy.Effective)
	x.Rec.Denials, _ = x.Redactor.Marshal(x.Res.Policy.Denials)
	x.Rec.Machine.Debugged = x.purpose.Debug != nil
	if err := x.Rec.Update(); err != nil {
		return err
	}
	x.Attach(m)
	return nil
}

// Attach lets consoles join a machine until Detach. A session may have several machines in turn.
func (x *Execution) Attach(m *machine.Machine) {
	x.Detach()
	if x.Code.Attachable {
		consoles := attach.Server{Machine: m, Secrets: x.Code.Exposed > 0, Redactor: x.Redactor, Release: x.kept.release}
		x.detach = consoles.Listen(x.Rec.Dir())
	}
}

// Detach disconnects the consoles.
func (x *Execution) Detach() {
	if x.detach != nil {
		x.detach()
		x.detach = nil
	}
}

// hold keeps a halted machine whose guest has crashed.
func (x *Execution) hold(ctx context.Context, m *machine.Machine, why string) {
	x.kept.hold(ctx, m, x.Rec, x.Redactor.String(why))
}

// connect gets a machine and makes its guest start the code. If a clone does not answer, connect
// boots a machine instead.
func (x *Execution) connect(ctx context.Context) (*guest.Conn, error) {
	for {
		m, err := spans.Phase(ctx, x.engine.Meters, "boot",
			func(ctx context.Context) (*machine.Machine, error) { return x.get(ctx, x.Spec, x.Network()) })
		if err != nil {
			return nil, failure.At("boot", err)
		}
		x.Machine = m
		x.Asked.SetMachine(m)
		x.Later(func() { m.Close() })
		if weak := m.Jail().Weakness(); weak != "" {
			x.streams.Events(run.Event{Kind: run.EventJail, Message: "QEMU is not held as it should be: " + weak})
		}
		x.Later(x.Detach) // before the machine is closed
		if err := x.publish(m); err != nil {
			return nil, failure.At("record", err)
		}
		if lacks := m.Jail().Lacks(x.Granted.RequireJail); len(lacks) > 0 {
			return nil, failure.At("jail", &run.JailError{Lacks: lacks})
		}
		booted := time.Now()
		x.Res.Duration.Boot = booted.Sub(x.start)
		conn, err := spans.Phase(ctx, x.engine.Meters, "connect",
			func(ctx context.Context) (*guest.Conn, error) { return x.begin(ctx, m) })
		if err == nil {
			x.Code.Compiled.Sent()
			x.Later(func() { conn.Close() })
			x.streams.Events(run.Event{Kind: run.EventStarted})
			x.Res.Duration.Connect = time.Since(booted)
			return conn, nil
		}
		if errors.As(err, new(*guest.ContentError)) || errors.As(err, new(*policy.FieldError)) { // the caller's mistake
			return nil, failure.At("connect", err)
		}
		err = m.Explain(err)
		if m.Origin == machine.Booted || x.resumed() || ctx.Err() != nil {
			if x.kept.wants(ctx, m) {
				x.hold(ctx, m, err.Error())
			}
			return nil, failure.At("connect", err)
		}
		m.Close()
		m.Unfit(err) // so later runs boot, too
		x.streams.Events(run.Event{Kind: run.EventRetry,
			Message: "the clone does not answer: " + err.Error() + "; booting instead"})
		x.get = x.engine.Source.Boot
	}
}

// converse streams the code's input and output until it ends, and collects the files in
// /out.
func (x *Execution) converse(ctx context.Context, conn *guest.Conn) error {
	m, started := x.Machine, time.Now()
	if s := x.purpose.Session; s != nil {
		return s.Serve(ctx, x, conn)
	}
	stdout := bounded.NewStream(x.Granted.OutputBytes, x.Rec.Stdout(), x.streams.Stdout)
	stderr := bounded.NewStream(x.Granted.OutputBytes, x.Rec.Stderr(), x.streams.Stderr)
	end, err := spans.Phase(ctx, x.engine.Meters, "code",
		func(ctx context.Context) (guest.End, error) { return x.stream(ctx, conn, stdout, stderr) })
	x.Res.Duration.Run = time.Since(started) - x.clock.Stopped()
	if errors.Is(err, failure.ErrRetry) {
		m.Close()
		x.Res.Retried = fmt.Sprintf("on the %s kernel the code asked for %s, which it does not have", x.Image.Kernel,
			m.Lacks())
		return failure.ErrRetry
	}
	crashed := lost(err)
	if errors.Is(err, guest.ErrGone) {
		end, err = m.Afterlife(ctx, err)
	}
	if crashed && x.kept.wants(ctx, m) {
		if err == nil { // the kernel's console tells the end
			SetEnd(x.Res, x.Code.Language, end, stderr.Tail.String())
			x.hold(ctx, m, x.Res.Error)
		} else {
			x.hold(ctx, m, m.Explain(err).Error())
		}
	}
	if err == nil && end.Out && x.Granted.MaxArtifacts > 0 {
		_, err = spans.Phase(ctx, x.engine.Meters, "collect", func(ctx context.Context) (*run.Result, error) {
			return x.Res, collect(ctx, started.Add(x.limit+x.clock.Stopped()+x.engine.Grace), conn,
				x.Rec.Artifacts(x.Granted.MaxArtifacts, x.Redactor), x.Res)
		})
	}
	m.Close() // the machine is gone before anybody learns of its end
	x.Res.Stdout, x.Res.Stderr = stdout.Bytes(), stderr.Bytes()
	x.Res.Truncated = stdout.Truncated || stderr.Truncated
	x.Rec.Drops, _ = json.Marshal(m.Drops())
	if err := x.Config.Network.Capture.Err(); err != nil {
		x.streams.Events(run.Event{Kind: run.EventCapture, Message: err.Error()})
	}
	if why := x.audit.Cut(); why != "" {
		x.streams.Events(run.Event{Kind: run.EventNetwork, Message: why})
	}
	if err != nil {
		return failure.At("run", m.Explain(err))
	}
	SetEnd(x.Res, x.Code.Language, end, stderr.Tail.String())
	x.left = end.Left
	x.hint(stderr.Tail.String())
	if err := conn.StdinErr(); err != nil && x.Res.ExitCode == 0 { // the code may have done half of its work
		return failure.At("run", err)
	}
	return nil
}

// stream carries the streams until the code ends or its time is up. The error is failure.ErrRetry
// if the run must be repeated.
func (x *Execution) stream(ctx context.Context, conn *guest.Conn, stdout, stderr io.Writer) (guest.End, error) {
	first := x.mayRetry()
	timed, cancel := x.clock.Start(ctx, x.limit)
	defer cancel()
	if first != nil {
		watched, retry := context.WithCancelCause(timed)
		timed = watched
		var watching sync.WaitGroup
		watching.Go(func() { first.watch(x.Machine, retry, watched.Done()) })
		defer watching.Wait()
		defer retry(nil)
	}
	plainOut, plainErr := x.Redactor.Writer(stdout), x.Redactor.Writer(stderr)
	end, err := conn.Stream(timed, x.streams.Stdin, first.writer(plainOut), first.writer(plainErr))
	x.Machine.Cut() // a guest that lies about its end reaches no network any more
	err = errors.Join(err, plainOut.Close(), plainErr.Close())
	if err == nil && first.ended(x.Machine, end.Code|end.Signal) {
		err = failure.ErrRetry
	}
	return end, err
}

// describe returns the record's description of a machine.
func describe(m *machine.Machine) *record.Machine {
	im := m.Spec.Image
	jail, _ := json.Marshal(m.Jail())
	return &record.Machine{
		Kernel: string(im.Kernel), KernelVersion: im.Version, Image: im.Name, Runtime: im.Runtime, Arch: string(im.Arch),
		ImageDigest: im.Digest,
		Accelerator: string(m.Spec.Accel), QEMU: m.Spec.QEMU.Version, Jail: jail, MemoryMB: m.Spec.MemoryMB,
		Cloned: m.Origin != machine.Booted, Pooled: m.Origin == machine.Pooled, Template: m.Template(),
		Rehearsed: m.Rehearsed(),
	}
}

// debugTime is the time limit of code in a machine that a debugger may stop.
const debugTime = 24 * time.Hour
