package unitask

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// MachineClass is what a run asks of its machine. All runs of one class are cloned from one template. Zero values are
// the defaults, as in Request.
type MachineClass = machine.Class

// spec returns a class with its defaults on this host, and builds a missing image.
func (rt *Runtime) spec(ctx context.Context, sh MachineClass) (machine.Spec, error) {
	im, _, err := rt.engine.Catalog.Ensure(ctx, rt.engine.Images, sh.Image, sh.Kernel, sh.Arch)
	if err != nil {
		return machine.Spec{}, failure.Host("image", err)
	}
	spec, err := rt.engine.Source.Spec(ctx, im, sh)
	if err != nil {
		return spec, failure.Host("boot", err)
	}
	return spec, nil
}

// MakeTemplate makes the template from which runs of a class are cloned. It boots a machine, runs an unimportant script
// in it, and keeps its memory and device state. It does nothing if the template exists or another process is making it.
// It returns whether it made one.
func (rt *Runtime) MakeTemplate(ctx context.Context, sh MachineClass) (bool, error) {
	leave, err := rt.enter()
	if err != nil {
		return false, err
	}
	defer leave()
	sh, err = catalog.WithDefaults(rt.opts.Home, sh)
	if err != nil {
		return false, err
	}
	spec, err := rt.spec(ctx, sh)
	if err != nil {
		return false, err
	}
	if sh.Folders != "" {
		steady := &hostfiles.Steady{}
		if err := json.Unmarshal([]byte(sh.Folders), steady); err != nil {
			return false, policy.Bad("folders", fmt.Sprintf("%.80q", sh.Folders), "is not what a run has given: %v", err)
		}
		spec.Folders = engine.Folders{Steady: steady}
	}
	made, err := rt.engine.Source.MakeTemplate(ctx, spec)
	if err != nil {
		return false, failure.Host("template", err)
	}
	return made, nil
}

// Machines says where a runtime's machines come from: Templates, Pool, PoolDaemon or Booted.
type Machines struct {
	booted bool
	from   machine.Options
	class  MachineClass
}

// Templates clones each run's machine from the template of its kind. The first run of a kind boots, and the runtime
// then makes the template in the background, until Close.
func Templates() Machines { return Machines{} }

// Pool is Templates, and also keeps clones ready in this process. It keeps at least size.Min of the given class, and
// more of other classes as runs ask for them. Close destroys the clones.
func Pool(size PoolSize, class MachineClass) Machines {
	return Machines{from: machine.Options{Pool: size}, class: class}
}

// PoolDaemon uses the clones of the home's pool daemon (Runtime.ServePool) if one runs; otherwise it clones from
// templates. It suits a process that ends with its run, so it makes no templates itself. If a template is missing or
// will soon be used up, the goroutine that called Run calls warm with the template's class. Another process can then
// make it (Runtime.MakeTemplate). With a nil warm, nobody makes it.
func PoolDaemon(warm func(MachineClass)) Machines {
	if warm == nil {
		warm = func(MachineClass) {}
	}
	return Machines{from: machine.Options{Lease: true, Warm: warm}}
}

// Booted boots each run's machine, as Request.Cold does, and makes no templates.
func Booted() Machines { return Machines{booted: true} }

// check validates the class and fills in its defaults.
func (m Machines) check(home string) (machine.Options, MachineClass, error) {
	if err := m.from.Pool.Check(); err != nil {
		return m.from, m.class, policy.Bad("pool", fmt.Sprintf("%d:%d", m.from.Pool.Min, m.from.Pool.Max), "%v", err)
	}
	class, err := catalog.WithDefaults(home, m.class)
	return m.from, class, err
}

// PoolSize is how many clones are kept ready: at least Min and at most Max. In between, it follows the number of runs
// in the last half minute. Each clone serves one run.
type PoolSize = machine.PoolSize

// PoolStats are the counts of a pool.
type PoolStats = machine.PoolStats

// PoolStatus is what a pool daemon reports.
type PoolStatus = machine.PoolStatus

// ParsePoolSize reads MIN:MAX, or one number for both.
func ParsePoolSize(s string) (PoolSize, error) { return machine.ParsePoolSize(s) }

// ErrNoPool means that no pool daemon runs. On macOS, which has no memfd, none can.
var ErrNoPool = machine.ErrNoPool

// ErrPoolRuns means that a pool daemon already runs.
var ErrPoolRuns = machine.ErrPoolRuns

// ServePool runs the pool daemon of the runtime's home. The runtime must have been opened with Pool as its Machines.
// ServePool returns nil when ctx ends, when it is told to stop, or when no run came for the time idle. It waits for
// current runs on its clones. The error is ErrPoolRuns if a pool daemon already runs.
func (rt *Runtime) ServePool(ctx context.Context, idle time.Duration) error {
	leave, err := rt.enter()
	if err != nil {
		return err
	}
	defer leave()
	if err := rt.engine.Source.Serve(ctx, idle, rt.opts.Machines.class); err != nil {
		return failure.Host("pool", err)
	}
	return nil
}

// PoolDaemonStatus asks the home's pool daemon; the error is ErrNoPool if none runs.
func PoolDaemonStatus(home string) (*PoolStatus, error) { return machine.AskPool(home) }

// StopPoolDaemon stops the home's pool daemon, and returns when the daemon has ended or ctx ends. It waits for the runs
// on the daemon's clones. The error is ErrNoPool if none runs.
func StopPoolDaemon(ctx context.Context, home string) error { return machine.StopPool(ctx, home) }
