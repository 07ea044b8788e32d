// Package unitask runs code that nobody trusts in a fresh virtual machine under a declarative policy. Each run has a
// machine of its own, which ends with the run. A record of the run remains.
//
//	result, err := unitask.Run(ctx, unitask.Request{
//		Code:     `console.log("hello from", process.platform)`,
//		MemoryMB: 256,
//		Timeout:  10 * time.Second,
//	}, unitask.Options{})
//	// result.Stdout is "hello from linux\n", result.ExitCode is 0
//
// The code runs in a machine that no other run used before or uses again. It has no network except what the policy
// allows, and no files except those that it was given. It has no more memory, time and output than it was granted.
// Whatever the code does, it ends within its time limit and Run returns. Nothing of the machine is left, and the record
// says what happened. Some phases do not count toward that limit, and each has its own. They are the machine's start,
// the time in which unitask asks somebody (Request.Ask), and at most 15 s in which it collects artifacts.
//
// A program that fails is a Result, not an error. An error (HostError and the errors beside it) means that the code did
// not run, or that its result did not come back.
//
// A program that embeds unitask imports this package, and packages policy and record for the contents of ceilings and
// records. These three are stable, and so are run and session, whose types have names here. Their exported names change
// with a major version only. The other packages are parts of this one, and may change with any version.
package unitask

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/compiled"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/internal/imagebuild"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/spans"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/session"
	"github.com/unitask/unitask/vmm"
)

// ErrClosed is returned by a runtime after Close.
var ErrClosed = engine.ErrClosed

// Options configure a Runtime; the zero value is ready to use.
type Options struct {
	// Home is the folder for parts, images and records; "" is $UNITASK_HOME, or ~/.unitask.
	Home string
	// Offline forbids fetching missing image parts: a run that needs them fails and names the command that fetches them.
	// nil uses UNITASK_OFFLINE, then the home's ConfigFile.
	Offline *bool
	// Accel is the accelerator; "" is auto.
	Accel Accel
	// Events, if not nil, receives the events that belong to no run (image builds, templates made in the background). It
	// also receives the events of runs without IO.Events; these have a RunID. The goroutines of runs and of the runtime
	// call it, one at a time; it should not block.
	Events func(Event)
	// Upstream resolves and dials the hosts that the policy allows. The zero value uses the host's resolver and
	// network, and the proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name.
	Upstream Upstream
	// StoreBytes bounds the records of all runs together. Beyond it, the store removes the oldest artifacts, then the
	// oldest runs, of the owner who has the most. 0 is record.DefaultStoreBytes, -1 no bound.
	StoreBytes int64
	// Ceiling limits what any run gets (policy.FindCeiling); nil means no limit.
	Ceiling *policy.Ceiling
	// RequireJail names layers and limits of QEMU's jail that a machine must have to run, in addition to those in the
	// home's configuration (ConfigFile).
	RequireJail []string
	// Machines says where machines come from. The default is Templates().
	Machines Machines
	// Fleet, if not nil, runs everything on other hosts (package fleet); this one keeps the
	// records. Sessions on a fleet are the client's own: fleet.Client.NewSession.
	Fleet Fleet
	// The streams of the run, for Run. Runtime.Run takes its own.
	IO
}

// Run runs one request and returns when its machine is gone.
//
// Once the run has a record, the Result is not nil, even with an error. When ctx ends, the machine stops; err then
// wraps the cause of ctx.
//
// The first Run of a kind (kernel, memory) takes some seconds more. Before it returns, it makes the template from which
// later runs, of this process or another, are cloned. A Runtime does that in the background.
func Run(ctx context.Context, req Request, opts Options) (*Result, error) {
	rt, err := Open(opts)
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	rt.engine.Brief = true
	res, err := rt.Run(ctx, req, opts.IO)
	rt.engine.Source.Settle(ctx)
	return res, err
}

// Runtime runs requests. Any number of goroutines may call Run at once.
type Runtime struct {
	opts     Options
	engine   *engine.Engine
	sessions *session.Manager

	mu     sync.Mutex
	closed bool
	uses   sync.WaitGroup // of current calls
}

// enter counts a call as current until leave, or returns an error if the runtime is closed.
func (rt *Runtime) enter() (leave func(), err error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return nil, ErrClosed
	}
	rt.uses.Add(1)
	return rt.uses.Done, nil
}

// Open checks the options and returns a runtime. Close frees it.
func Open(opts Options) (*Runtime, error) {
	var err error
	if opts.Home == "" {
		if opts.Home, err = home.Default(); err != nil {
			return nil, &HostError{Op: "open", Err: err}
		}
	}
	if err := home.Check(opts.Home); err != nil {
		return nil, &HostError{Op: "open", Err: err}
	}
	accel, err := vmm.ParseAccel(string(opts.Accel))
	if err != nil {
		return nil, policy.Bad("accel", fmt.Sprintf("%q", opts.Accel), "use auto, kvm, hvf or tcg")
	}
	opts.Accel = accel
	conf, err := config.Read(opts.Home)
	if err != nil {
		return nil, &HostError{Op: "open", Err: err}
	}
	if opts.RequireJail, err = policy.Jail(conf.RequireJail, opts.RequireJail); err != nil {
		return nil, policy.Bad("requireJail", "", "%v", err)
	}
	if opts.Upstream.Proxy == nil {
		opts.Upstream.Proxy = egress.EnvironmentProxy()
	}
	opts.Events = oneAtATime(opts.Events)
	tell := func(kind EventKind, message string) { opts.Events(Event{Kind: kind, Message: message}) }
	images, err := image.Open(opts.Home, language.Payloads(), func(msg string) { tell(EventImage, msg) })
	if err != nil {
		return nil, &HostError{Op: "open", Err: err}
	}
	images.Transfer = func(done, total int64) { opts.Events(Event{Kind: EventTransfer, Done: done, Total: total}) }
	images.Custom, images.Along = catalog.CustomPayloads(opts.Home), catalog.ShippedPayload
	images.PartsURL, images.Mirror = os.Getenv("UNITASK_PARTS_URL"), conf.Mirror()
	if images.Offline, err = config.OfflineBy(opts.Offline, opts.Home, conf); err != nil {
		return nil, &HostError{Op: "open", Err: err}
	}
	from, class, err := opts.Machines.check(opts.Home)
	if err != nil {
		return nil, err
	}
	from.Home, from.Images, from.Accel, from.Programs = opts.Home, images, opts.Accel, language.Programs()
	from.Events = func(e machine.Event) { tell(e.Kind, e.Message) }
	rt := &Runtime{opts: opts}
	e := &engine.Engine{Home: opts.Home, RequireJail: opts.RequireJail, Upstream: opts.Upstream, Fleet: opts.Fleet,
		Events: opts.Events, Images: images, Runs: record.Open(home.Dir(opts.Home).Runs()), Source: machine.Open(from),
		Journal:  &audit.Journal{Log: audit.In(opts.Home), OnError: func(err error) { tell(EventStore, err.Error()) }},
		Refusals: &runlog.Refusals{}, Meters: spans.New(), Enter: rt.enter,
		Boots: opts.Machines.booted, Grace: engine.CollectGrace, ApprovalTime: approval.Patience}
	e.History = &history.Store{Records: e.Runs, Home: opts.Home, MaxBytes: opts.StoreBytes}
	e.Catalog = &catalog.Catalog{Home: opts.Home, Images: images, Records: e.Runs, Source: e.Source,
		Journal: e.Journal, Tell: opts.Events, Enter: rt.enter}
	e.Installer = &install.Installer{Home: opts.Home, Images: images, Records: e.Runs, Journal: e.Journal,
		Proxy: opts.Upstream.Proxy, Run: e.RunBuild}
	imagebuild.Serve(e.Catalog, e.Installer, opts.RequireJail)
	rt.engine, rt.sessions = e, session.NewManager(e, opts.Ceiling, rt.hasSessions)
	if from.Pool.Min > 0 {
		rt.engine.Source.Stock(func(ctx context.Context) (machine.Spec, error) { return rt.spec(ctx, class) })
	}
	return rt, nil
}

// Audit returns the audit log, which covers all runs.
func (rt *Runtime) Audit() *audit.Journal { return rt.engine.Journal }

// AuditRefusal writes into the audit log that a caller's request was refused before it had a record. For each kind and
// caller it logs the first refusal, then one in ten seconds with the number of omitted ones. It removes the values of
// asked's secrets.
func (rt *Runtime) AuditRefusal(kind audit.Kind, caller Caller, reason error, asked Request) {
	rt.engine.Refusals.Note(rt.engine.Journal, kind, caller, reason, asked)
}

// Images returns the store of parts and images.
func (rt *Runtime) Images() *image.Store { return rt.engine.Images }

// Templates returns the store of snapshots that runs are cloned from.
func (rt *Runtime) Templates() *machine.Templates { return rt.engine.Source.Templates() }

// History returns what was recorded: lists, records, and requests to run again.
func (rt *Runtime) History() *history.Store { return rt.engine.History }

// Approvals lists and answers the questions of this home's runs, and changes their policies.
func (rt *Runtime) Approvals() *approval.Client { return &approval.Client{Records: rt.engine.Runs} }

// Catalog finds, lists, pulls and removes images.
func (rt *Runtime) Catalog() *catalog.Catalog { return rt.engine.Catalog }

func (rt *Runtime) doctor() *doctor.Doctor {
	return &doctor.Doctor{Home: rt.opts.Home, Accel: rt.opts.Accel, RequireJail: rt.opts.RequireJail,
		Images: rt.engine.Images, Source: rt.engine.Source, Catalog: rt.engine.Catalog, Records: rt.engine.Runs,
		Enter: rt.enter}
}

// Doctor checks everything that a run needs and boots a real machine on every accelerator that might work. It changes
// only the cache of accelerators that work.
func (rt *Runtime) Doctor(ctx context.Context) *doctor.Report { return rt.doctor().Examine(ctx) }

// Jail reports the layers and limits of the jail on this host, which it finds out with a stand-in for QEMU.
func (rt *Runtime) Jail(ctx context.Context) (vmm.Jail, error) { return rt.doctor().Jail(ctx) }

// Accelerator returns the accelerator of machines here, and why it is not hardware. The error is fs.ErrNotExist before
// an image is built.
func (rt *Runtime) Accelerator(ctx context.Context) (accel Accel, whySlow string, err error) {
	return rt.doctor().Accelerator(ctx)
}

// Attack runs a stand-in for a broken QEMU in the jail of this host. The stand-in tries what the jail must prevent.
func (rt *Runtime) Attack(ctx context.Context) ([]vmm.Attempt, vmm.Jail, error) {
	return rt.doctor().Attack(ctx)
}

// Runs returns the store of records.
func (rt *Runtime) Runs() *record.Store { return rt.engine.Runs }

// Compiled returns the store of compiled programs.
func (rt *Runtime) Compiled() *compiled.Store {
	return &compiled.Store{Dir: home.Dir(rt.opts.Home).Compiled()}
}

// Pool returns the counts of the runtime's pool; they are zero without a pool.
func (rt *Runtime) Pool() PoolStats { return rt.engine.Source.Pool() }

// Close ends the sessions, except paused ones, which Revive resumes. It waits for everything in progress, above all
// runs. It then frees what the runtime holds, including its pool's machines. After Close, calls that would start
// something fail with ErrClosed. To end runs early, cancel their contexts. Every call of Close returns only when
// everything has ended.
func (rt *Runtime) Close() error {
	rt.mu.Lock()
	rt.closed = true
	rt.mu.Unlock()
	rt.sessions.Close()
	rt.uses.Wait()
	return rt.engine.Source.Close()
}

// oneAtATime wraps a sink so that only one goroutine at a time calls it.
func oneAtATime(to func(Event)) func(Event) {
	if to == nil {
		return func(Event) {}
	}
	var mu sync.Mutex
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		to(e)
	}
}
