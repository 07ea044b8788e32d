package unitask

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

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/internal/spans"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

// execution is what of a run needs a machine. A run has one, or two where it is made again
// on another kernel (Request.KernelRetry).
type execution struct {
	engine   *engine
	code     *program.Program
	live     *egress.LiveRules
	look     inspection
	granted  policy.Effective
	streams  IO
	rec      *record.Run
	redactor *record.Redactor
	audit    *runlog.Log
	res      *Result // run fills it in

	// How it gets its machine (plan).
	start   time.Time
	image   *image.Image
	spec    machine.Spec
	config  machine.Config
	get     func(context.Context, machine.Spec, machine.Config) (*machine.Machine, error)
	limit   time.Duration // of the code
	warm    bool          // the next ones like it are cloned
	kept    holding
	clock   *stopclock.Clock // of the code's time
	asked   *approval.Asker
	machine *machine.Machine
	undo    []func()
}

// run fills in the result. A run that reached its time limit has no error.
func (x *execution) run(ctx context.Context) error {
	defer x.close()
	x.clock, x.start = new(stopclock.Clock), time.Now()
	x.res.Outcome, x.res.ExitCode = OutcomeFailed, ExitHost
	_, err := spans.Phase(ctx, x.engine.meters, "image", func(ctx context.Context) (*image.Image, error) { return x.image, x.plan(ctx) })
	var conn *guest.Conn
	if err == nil {
		x.code.Compiled = x.compilation()
		defer x.code.Compiled.Close()
		if c := x.code.Compiled; c != nil {
			x.config.Place = c.Load
		}
		conn, err = x.connect(ctx)
	}
	if err == nil {
		err = x.converse(ctx, conn)
		x.res.Compiled = x.code.Compiled.How()
	}
	if err != nil {
		err = x.classify(ctx, err)
	}
	if s := x.look.session; err == nil || s != nil && s.Closed(err) {
		x.warmNext()
	}
	return err
}

// warmNext sees to it, once, that the next ones like it are cloned.
func (x *execution) warmNext() {
	if !x.warm {
		return
	}
	x.warm = false
	spec := x.spec
	if x.engine.brief {
		spec.Folders = nil
	}
	x.engine.source.Warm(spec)
}

// close undoes what was opened, the last first.
func (x *execution) close() {
	for _, undo := range slices.Backward(x.undo) {
		undo()
	}
}

func (x *execution) later(undo func()) { x.undo = append(x.undo, undo) }

// plan gets the image and decides how the run comes by its machine.
func (x *execution) plan(ctx context.Context) error {
	if err := x.resolveImage(ctx); err != nil {
		return err
	}
	if err := x.install(ctx); err != nil {
		return err
	}
	x.res.Kernel = x.image.Kernel
	x.res.Policy.Effective.Kernel = string(x.image.Kernel)
	if cpus := x.granted.CPUs; cpus != math.Trunc(cpus) {
		if err := vmm.CanShareProcessor(); err != nil {
			return failure.At("cpus", policy.Bad("cpus", strconv.FormatFloat(cpus, 'f', -1, 64), "%v", err))
		}
	}
	var err error
	if x.spec, err = x.engine.source.Spec(ctx, x.image, Shape{MemoryMB: x.granted.MemoryMB, CPUs: x.granted.CPUs, FreshProcess: x.code.Fresh}); err != nil {
		return failure.At("boot", err)
	}
	if err := x.hardware(); err != nil {
		return failure.At("boot", err)
	}
	if x.look.session != nil && machine.CanClone {
		x.spec.Life = machine.Lasting
	}
	if err := x.configure(); err != nil {
		return err
	}
	return x.chooseMachine(ctx)
}

// resolveImage finds the image, and builds it where it must be.
func (x *execution) resolveImage(ctx context.Context) error {
	images := x.engine.images
	if x.look.trace != nil && x.look.trace.Syscalls {
		images = images.Tracing()
	}
	if err := x.importedName(); err != nil {
		return failure.At("image", err)
	}
	var contained *image.Container
	var err error
	if x.code.Image.Payload.Own != nil {
		x.image, err = x.engine.catalog.Obtain(ctx, images.With(x.code.Image.Payload), image.Kernel(x.granted.Kernel), x.code.Arch)
	} else {
		x.image, contained, err = x.engine.catalog.Ensure(ctx, images, x.code.Image.Payload.Name, image.Kernel(x.granted.Kernel), x.code.Arch)
	}
	if err != nil {
		return failure.At("image", err)
	}
	if s := x.look.session; s != nil && s.ImageDigest() != "" { // on the image of then, if it is still there
		if then, err := images.ByDigest(s.ImageDigest()); err == nil && then.Kernel == x.image.Kernel && then.Arch == x.image.Arch {
			x.image = then
		}
	}
	if contained != nil && contained.Own != nil {
		return failure.At("image", policy.Bad("image", x.code.Image.Payload.Name, "is no container's image: it is an own one that came along from another host, and is named by its whole digest"))
	}
	if contained != nil {
		if err := x.code.Adopt(contained); err != nil {
			return failure.At("image", err)
		}
	}
	return nil
}

// chooseMachine says how the machine is had: cloned, booted, or one that is there.
func (x *execution) chooseMachine(ctx context.Context) error {
	x.kept.keep, x.kept.tell = x.streams.Keep, x.streams.Events
	x.get, x.limit = x.engine.source.Get, x.granted.Timeout
	switch debug := x.look.debug; {
	case x.goesOn():
		x.get = x.look.session.GoOn()
	case debug != nil:
		if debug.NoJail && len(x.granted.RequireJail) > 0 {
			return failure.At("jail", &JailError{Lacks: vmm.Jail{}.Lacks(x.granted.RequireJail)})
		}
		x.config.Debug = &machine.Debug{GDB: debug.GDB, NoJail: debug.NoJail, Started: debug.Started}
		var err error
		if x.spec, err = x.engine.source.Probe(ctx, x.spec); err != nil {
			return failure.At("boot", err)
		}
		x.get, x.limit = x.engine.source.BootOnce, debugTime
	case x.look.trace != nil:
		x.get = x.engine.source.Boot
	case x.streams.Keep != nil:
		x.get = x.engine.source.Boot // a template's machine has a device to end QEMU with
		x.config.Keep = func(m *machine.Machine, why error) {
			if leave, err := x.introduce(m); err == nil {
				x.hold(ctx, m, why.Error())
				leave()
			}
		}
	case x.code.Cold || x.engine.boots:
		x.get = x.engine.source.Boot
	default:
		x.warm = true
		if machine.CanClone && !x.code.Fresh {
			if steady := x.code.Inputs.Steady(); steady != nil {
				x.spec.Folders = folders{steady}
			}
		}
	}
	return nil
}

// hardware says why nothing runs where hardware virtualization is required, nil where it may.
func (x *execution) hardware() error {
	if !x.granted.RequireHardware || x.spec.Accel != vmm.TCG {
		return nil
	}
	why := cmp.Or(x.engine.source.WhySlow(x.spec), "the accelerator tcg was chosen")
	return policy.Bad("requireHardware", "true", "and this host has no hardware virtualization that works: %s", why)
}

// importedName says why an image does not run under a name that somebody gave it who imported it: a ceiling lists
// images by their registries.
func (x *execution) importedName() error {
	name := x.code.Image.Payload.Name
	ref, is, _ := policy.Reference(name)
	if !is || !x.live.Ceiling.Bounds("images") {
		return nil
	}
	if c, err := x.engine.images.Container(x.code.Arch, ref); err == nil && c.ImportedAs(ref) {
		return policy.Bad("image", name, "was imported under that name, and a ceiling's images are those that were pulled: pull it, or list %s", c.Digest)
	}
	return nil
}

// goesOn says that the machine is one that was under way before: a session's that was forked or revived.
func (x *execution) goesOn() bool {
	return x.look.session != nil && x.look.session.GoOn() != nil
}

// begin has the guest start the code, or go on with it.
func (x *execution) begin(ctx context.Context, m *machine.Machine) (*guest.Conn, error) {
	if x.goesOn() {
		return m.Rejoin(ctx)
	}
	part := hostfiles.All
	if m.Spec.Folders != nil { // it holds them
		part = hostfiles.AllButSteady
	}
	x.code.Compiled.In(m)
	return m.Connect(ctx, x.code.Inputs.Patience()+x.code.Compiled.Patience(), func(ctx context.Context, conn *guest.Conn) error { return x.code.Put(ctx, conn, part) })
}

// introduce writes down what the machine is, and lets consoles join it until leave.
func (x *execution) introduce(m *machine.Machine) (leave func(), err error) {
	x.res.Accelerator, x.res.Cloned, x.res.Pooled = m.Spec.Accel, m.Origin != machine.Booted, m.Origin == machine.Pooled
	x.rec.Machine = describe(m)
	x.res.WhySlow = x.engine.source.WhySlow(m.Spec)
	x.rec.Machine.WhySlow = x.res.WhySlow
	x.rec.Effective, _ = x.redactor.Marshal(x.res.Policy.Effective)
	x.rec.Denials, _ = x.redactor.Marshal(x.res.Policy.Denials)
	x.rec.Machine.Debugged = x.look.debug != nil
	if err := x.rec.Update(); err != nil {
		return nil, err
	}
	if !x.code.Attachable {
		return func() {}, nil
	}
	return x.engine.attach(x.rec, m, x.code.Exposed > 0, x.redactor, x.kept.release), nil
}

// hold keeps a halted machine whose guest has crashed.
func (x *execution) hold(ctx context.Context, m *machine.Machine, why string) {
	x.kept.hold(ctx, m, x.rec, x.redactor.String(why))
}

// connect gets a machine and has its guest start the code. A clone that does not answer is
// replaced by a machine that is booted.
func (x *execution) connect(ctx context.Context) (*guest.Conn, error) {
	for {
		m, err := spans.Phase(ctx, x.engine.meters, "boot", func(ctx context.Context) (*machine.Machine, error) { return x.get(ctx, x.spec, x.network()) })
		if err != nil {
			return nil, failure.At("boot", err)
		}
		x.machine = m
		x.asked.Over(m)
		x.later(func() { m.Close() })
		if weak := m.Jail().Weakness(); weak != "" {
			x.streams.Events(Event{Kind: EventJail, Message: "QEMU is not held as it should be: " + weak})
		}
		leave, err := x.introduce(m)
		if err != nil {
			return nil, failure.At("record", err)
		}
		x.later(leave)
		if lacks := m.Jail().Lacks(x.granted.RequireJail); len(lacks) > 0 {
			return nil, failure.At("jail", &JailError{Lacks: lacks})
		}
		booted := time.Now()
		x.res.Duration.Boot = booted.Sub(x.start)
		conn, err := spans.Phase(ctx, x.engine.meters, "connect", func(ctx context.Context) (*guest.Conn, error) { return x.begin(ctx, m) })
		if err == nil {
			x.code.Compiled.Sent()
			x.later(func() { conn.Close() })
			x.streams.Events(Event{Kind: EventStarted})
			x.res.Duration.Connect = time.Since(booted)
			return conn, nil
		}
		if errors.As(err, new(*guest.ContentError)) || errors.As(err, new(*policy.FieldError)) { // the caller's
			return nil, failure.At("connect", err)
		}
		err = m.Explain(err)
		if m.Origin == machine.Booted || x.goesOn() || ctx.Err() != nil {
			if x.kept.wants(ctx, m) {
				x.hold(ctx, m, err.Error())
			}
			return nil, failure.At("connect", err)
		}
		m.Close()
		m.Unfit(err) // the next ones boot, too
		x.streams.Events(Event{Kind: EventRetry, Message: "the clone does not answer: " + err.Error() + "; booting instead"})
		x.get = x.engine.source.Boot
	}
}

// converse streams what the code reads and prints until it ends, and collects what it
// leaves.
func (x *execution) converse(ctx context.Context, conn *guest.Conn) error {
	m, started := x.machine, time.Now()
	if s := x.look.session; s != nil {
		return s.Serve(ctx, x, conn)
	}
	stdout := bounded.NewStream(x.granted.OutputBytes, x.rec.Stdout(), x.streams.Stdout)
	stderr := bounded.NewStream(x.granted.OutputBytes, x.rec.Stderr(), x.streams.Stderr)
	end, err := spans.Phase(ctx, x.engine.meters, "code", func(ctx context.Context) (guest.End, error) { return x.stream(ctx, conn, stdout, stderr) })
	x.res.Duration.Run = time.Since(started) - x.clock.Stopped()
	if errors.Is(err, failure.ErrRetry) {
		m.Close()
		x.res.Retried = fmt.Sprintf("on the %s kernel the code asked for %s, which it does not have", x.image.Kernel, m.Lacks())
		return failure.ErrRetry
	}
	crashed := lost(err)
	if errors.Is(err, guest.ErrGone) {
		end, err = m.Afterlife(ctx, err)
	}
	if crashed && x.kept.wants(ctx, m) {
		if err == nil { // the kernel has said how
			setEnd(x.res, x.code.Language, end, stderr.Tail.String())
			x.hold(ctx, m, x.res.Error)
		} else {
			x.hold(ctx, m, m.Explain(err).Error())
		}
	}
	if err == nil && end.Out && x.granted.MaxArtifacts > 0 {
		_, err = spans.Phase(ctx, x.engine.meters, "collect", func(ctx context.Context) (*Result, error) {
			return x.res, collect(ctx, started.Add(x.limit+x.clock.Stopped()+x.engine.grace), conn, x.rec.Artifacts(x.granted.MaxArtifacts, x.redactor), x.res)
		})
	}
	m.Close() // the machine is gone before anything is said of its end
	x.res.Stdout, x.res.Stderr = stdout.Bytes(), stderr.Bytes()
	x.res.Truncated = stdout.Truncated || stderr.Truncated
	x.rec.Drops, _ = json.Marshal(m.Drops())
	if err := x.config.Network.Capture.Err(); err != nil {
		x.streams.Events(Event{Kind: EventCapture, Message: err.Error()})
	}
	if why := x.audit.Cut(); why != "" {
		x.streams.Events(Event{Kind: EventNetwork, Message: why})
	}
	if err != nil {
		return failure.At("run", m.Explain(err))
	}
	setEnd(x.res, x.code.Language, end, stderr.Tail.String())
	x.hint(stderr.Tail.String())
	if err := conn.StdinErr(); err != nil && x.res.ExitCode == 0 { // it may have done half of its work
		return failure.At("run", err)
	}
	return nil
}

// stream passes the streams on until the code ends or its time is up. The error is errRetry
// where the run is to be made again.
func (x *execution) stream(ctx context.Context, conn *guest.Conn, stdout, stderr io.Writer) (guest.End, error) {
	first := x.mayRetry()
	timed, cancel := x.clock.Start(ctx, x.limit)
	defer cancel()
	if first != nil {
		watched, retry := context.WithCancelCause(timed)
		timed = watched
		var watching sync.WaitGroup
		watching.Go(func() { first.watch(x.machine, retry, watched.Done()) })
		defer watching.Wait()
		defer retry(nil)
	}
	plainOut, plainErr := x.redactor.Writer(stdout), x.redactor.Writer(stderr)
	end, err := conn.Stream(timed, x.streams.Stdin, first.writer(plainOut), first.writer(plainErr))
	x.machine.Cut() // a guest that lies about its end gets no further
	err = errors.Join(err, plainOut.Close(), plainErr.Close())
	if err == nil && first.ended(x.machine, end.Code|end.Signal) {
		err = failure.ErrRetry
	}
	return end, err
}

// hint says what code that failed seems to have lacked.
func (x *execution) hint(stderrTail string) {
	if x.res.ExitCode == 0 || x.code.Check {
		return
	}
	if name := x.code.Language.Missing(stderrTail); name != "" {
		x.res.Hint = fmt.Sprintf("%s is not in the machine: %s --project, or by --dir", name, x.code.Image.Brings)
		if other := x.code.Language.ImageWith(name); other != "" && other != x.code.Image.Payload.Name {
			x.res.Hint = fmt.Sprintf("%s is not in the machine: --image %s has it", name, other)
		}
	}
	if why := x.asked.Denied(); why != "" {
		x.res.Hint = why
	}
	x.hintKernel()
}

// hintKernel says what the kernel lacked.
func (x *execution) hintKernel() {
	if x.machine == nil || x.res.ExitCode == 0 {
		return
	}
	if lacks := x.machine.Lacks(); lacks != "" {
		x.res.Hint = fmt.Sprintf("the code asked for %s, which the %s kernel does not have: --kernel linux does", lacks, x.image.Kernel)
	}
}

// describe is the record's description of a machine.
func describe(m *machine.Machine) *record.Machine {
	im := m.Spec.Image
	jail, _ := json.Marshal(m.Jail())
	return &record.Machine{
		Kernel: string(im.Kernel), KernelVersion: im.Version, Image: im.Name, Runtime: im.Runtime, Arch: string(im.Arch), ImageDigest: im.Digest,
		Accelerator: string(m.Spec.Accel), QEMU: m.Spec.QEMU.Version, Jail: jail, MemoryMB: m.Spec.MemoryMB,
		Cloned: m.Origin != machine.Booted, Pooled: m.Origin == machine.Pooled, Template: m.Template(), Rehearsed: m.Rehearsed(),
	}
}

// debugTime is the time limit of code in a machine that may stand still.
const debugTime = 24 * time.Hour
