package unitask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

// Shape is what a run asks of its machine. Runs of one shape are cloned from one
// template. Zero values mean the default, as in Request.
type Shape struct {
	Kernel   image.Kernel `json:"kernel"`
	Arch     image.Arch   `json:"arch"`
	MemoryMB int          `json:"memoryMb"`
	// FreshProcess: Node is executed anew in each clone (linux).
	FreshProcess bool `json:"freshProcess,omitempty"`
}

// check says what is wrong with a shape.
func (s Shape) check() error {
	_, _, err := s.resolve()
	return err
}

// resolve gives a shape its defaults.
func (s Shape) resolve() (image.Arch, policy.Effective, error) {
	arch, err := image.ParseArch(string(s.Arch))
	if err != nil {
		return "", policy.Effective{}, &policy.FieldError{Field: "arch", Value: fmt.Sprintf("%q", s.Arch), Reason: "use amd64 or arm64"}
	}
	kernel, err := freshKernel(s.Kernel, s.FreshProcess)
	if err != nil {
		return "", policy.Effective{}, err
	}
	eff, _, err := policy.Resolve(policy.Request{Kernel: string(kernel), MemoryMB: s.MemoryMB}, nil)
	return arch, eff, err
}

// machineSpec is a shape on this host.
type machineSpec struct {
	image    *image.Image
	qemu     vmm.QEMU
	accel    vmm.Accel
	memoryMB int
	fresh    bool
}

// templateVersion goes into every template's key: raise it when the command line or
// the way a template is made changes.
const templateVersion = 3

// key names everything that a clone must have in common with its template. The
// image's digest holds the agent; a host's boot holds its TSC.
func (s machineSpec) key() string {
	how := "warm"
	if s.fresh {
		how = "fresh"
	}
	return fmt.Sprintf("%d %s %s %s %d %s %s %s", templateVersion, s.image.Digest, s.accel, s.qemu.Version, s.memoryMB, how, s.qemu.ID, bootID())
}

// spec finds out what a shape is on this host. The accelerator is the one that is
// known to boot the image here, or "".
func (rt *Runtime) spec(ctx context.Context, im *image.Image, memoryMB int, fresh bool) (machineSpec, error) {
	qemu, err := vmm.FindQEMU(ctx, vmm.Arch(im.Arch), rt.memo)
	if err != nil {
		return machineSpec{}, err
	}
	accel := rt.opts.Accel
	if accel == vmm.Auto {
		known, _ := rt.memo.Get(accelKey(qemu, im))
		accel = vmm.Accel(known)
	}
	return machineSpec{im, qemu, accel, memoryMB, fresh}, nil
}

// resolve is spec for a shape; it builds the image that is missing.
func (rt *Runtime) resolve(ctx context.Context, sh Shape) (machineSpec, error) {
	arch, eff, err := sh.resolve()
	if err != nil {
		return machineSpec{}, err
	}
	im, err := rt.ensureImage(ctx, image.Kernel(eff.Kernel), arch)
	if err != nil {
		return machineSpec{}, hostError("image", err)
	}
	spec, err := rt.spec(ctx, im, eff.MemoryMB, sh.FreshProcess)
	if err != nil {
		return spec, hostError("template", err)
	}
	return spec, nil
}

// shape is what the spec was made of.
func (s machineSpec) shape() Shape {
	return Shape{Kernel: s.image.Kernel, Arch: s.image.Arch, MemoryMB: s.memoryMB, FreshProcess: s.fresh}
}

// freshKernel is the kernel of a run that may want a fresh process: Nanos is its
// process, and has no other.
func freshKernel(k image.Kernel, fresh bool) (image.Kernel, error) {
	if !fresh {
		return k, nil
	}
	if k != "" && k != image.Linux {
		return k, &policy.FieldError{Field: "freshProcess", Value: "with kernel " + string(k), Reason: "needs the linux kernel, which can start a process"}
	}
	return image.Linux, nil
}

// clone returns a machine that stood ready, or else restores the template of a
// machine like this; the error is fs.ErrNotExist where there is none. A template
// that does not work is dropped.
func (rt *Runtime) clone(ctx context.Context, im *image.Image, memoryMB int, fresh bool, cfg netstack.Config, serial io.Writer) (*booted, error) {
	spec, err := rt.spec(ctx, im, memoryMB, fresh)
	if err != nil {
		return nil, err
	}
	if rt.pool != nil {
		if s := rt.pool.take(spec); s != nil {
			if b, err := s.open(ctx, spec, cfg, serial); err == nil {
				return b, nil
			}
		}
	}
	if rt.opts.PoolDaemon {
		if s := leaseClone(ctx, rt.opts.Home, spec); s != nil {
			if b, err := s.open(ctx, spec, cfg, serial); err == nil {
				return b, nil
			}
		}
	}
	s, err := rt.spawn(ctx, spec)
	if err != nil {
		return nil, err
	}
	b, err := s.open(ctx, spec, cfg, serial)
	if err != nil {
		if ctx.Err() == nil { // else it is the run that was given up
			rt.templateFailed(spec, err)
		}
		return nil, err
	}
	b.failed = func(err error) { rt.templateFailed(spec, err) }
	return b, nil
}

// templateFailed drops a template that can't be cloned; doctor tells of it.
func (rt *Runtime) templateFailed(spec machineSpec, err error) {
	rt.templates.Drop(spec.key())
	rt.memo.Put(templateFailure, time.Now().UTC().Format(time.RFC3339)+" "+err.Error())
}

const templateFailure = "last template that failed"

// standby is a clone that nobody has used.
type standby struct {
	machine *vmm.Machine
	link    *os.File // our end of its network
	state   []byte   // to be restored; nil when it was, and is paused
	running bool     // not paused either: another process let it go on
	spare   bool     // that restored it only now
	since   time.Time
	once    sync.Once
}

// close destroys it.
func (s *standby) close() {
	s.once.Do(func() {
		s.machine.Close()
		s.link.Close()
	})
}

// alive says that QEMU still runs.
func (s *standby) alive() bool {
	select {
	case <-s.machine.Exited():
		return false
	default:
		return true
	}
}

// spawn starts a QEMU on a template's memory, without its state yet.
func (rt *Runtime) spawn(ctx context.Context, spec machineSpec) (*standby, error) {
	template, err := rt.loaded.load(rt.templates, spec.key())
	if err != nil {
		if errors.Is(err, vmm.ErrTemplate) {
			rt.templateFailed(spec, err)
		}
		return nil, err
	}
	defer template.Close()
	ours, theirs, err := netstack.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	machine, err := vmm.Start(ctx, vmm.Config{
		QEMU: spec.qemu, Arch: vmm.Arch(spec.image.Arch), Accel: spec.accel, MemoryMB: spec.memoryMB, Memory: template.Memory, State: template.State,
		Boot: rt.bootSpec(spec), NIC: theirs,
	})
	if err == nil {
		if err = template.Ready(); err != nil {
			machine.Close()
			rt.loaded.drop() // it is kept there
		}
	}
	if err != nil {
		ours.Close()
		return nil, err
	}
	rt.templates.Used(spec.key())
	return &standby{machine: machine, link: ours, state: template.State, since: time.Now()}, nil
}

// open lets the clone go on, on a network of its own. Whatever becomes of it, the
// standby is used up.
func (s *standby) open(ctx context.Context, spec machineSpec, cfg netstack.Config, serial io.Writer) (_ *booted, err error) {
	timed, cancel := context.WithTimeout(ctx, cloneDeadline)
	defer cancel()
	cfg.Link = s.link
	network, err := netstack.New(cfg)
	if err != nil {
		s.close()
		return nil, err
	}
	b := newBooted(spec, network, serial)
	b.machine, b.clone, b.pooled = s.machine, true, s.state == nil && !s.spare
	s.machine.ReadConsole(b.console)
	switch {
	case s.state != nil:
		err = s.machine.Restore(timed, s.state)
	case !s.running:
		err = s.machine.Resume(timed)
	}
	if err != nil {
		err = b.explain(err)
		b.close()
		return nil, err
	}
	return b, nil
}

// Rehearsals: in a template until V8 has learned what a run takes (a clone's run then
// takes half the time under TCG); in a clone that is to stand ready, so that the
// emulator has translated it too.
const (
	templateRehearsals = 6
	cloneRehearsals    = 2
)

func rehearse(ctx context.Context, network *netstack.Network, times int, snapshot bool) error {
	for i := range times {
		if err := guest.Rehearse(ctx, network, node.Rehearsal, snapshot && i == times-1); err != nil {
			return err
		}
	}
	return nil
}

// ready takes a spawned clone as far as it goes without a run: it is restored, has
// run the throw-away script, so that its code is translated, and is paused.
func (s *standby) ready(ctx context.Context, spec machineSpec) error {
	timed, cancel := context.WithTimeout(ctx, cloneDeadline)
	defer cancel()
	network, err := netstack.New(netstack.Config{Link: s.link})
	if err != nil {
		return err
	}
	err = s.machine.Restore(timed, s.state)
	if err == nil && !spec.fresh {
		err = rehearse(timed, network, cloneRehearsals, false)
	}
	if err == nil {
		err = s.machine.Pause(timed)
	}
	if err != nil {
		network.Close()
		return err
	}
	if s.link, err = network.Detach(); err != nil {
		return err
	}
	s.state = nil
	return nil
}

// loadedTemplates keeps templates in memory, sealed, for as long as they are good:
// a runtime that runs much need not copy one for each run.
type loadedTemplates struct {
	mu   sync.Mutex
	kept map[string]loadedTemplate
}

type loadedTemplate struct {
	*vmm.Template
	created time.Time
}

// maxLoaded bounds the templates kept; each takes 60 to 200 MiB.
const maxLoaded = 2

// load returns the template of a key, a copy that the caller closes.
func (l *loadedTemplates) load(store *vmm.Templates, key string) (*vmm.Template, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	created, err := store.Created(key)
	if kept, ok := l.kept[key]; ok {
		if err == nil && kept.created.Equal(created) {
			return kept.Dup()
		}
		kept.Close()
		delete(l.kept, key)
	}
	if err != nil {
		return nil, err
	}
	t, err := store.Load(key)
	if err != nil {
		return nil, err
	}
	for other, kept := range l.kept {
		if len(l.kept) < maxLoaded {
			break
		}
		kept.Close()
		delete(l.kept, other)
	}
	l.kept[key] = loadedTemplate{t, created}
	return t.Dup()
}

// drop lets go of all of them.
func (l *loadedTemplates) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, kept := range l.kept {
		kept.Close()
		delete(l.kept, key)
	}
}

// MakeTemplate makes the template that runs of a shape are then cloned from. It
// boots a machine, has it run a throw-away script, and keeps its memory and the state
// of its devices. Where another process is making it, or it is there, it does
// nothing. It returns whether it made one.
func (rt *Runtime) MakeTemplate(ctx context.Context, sh Shape) (bool, error) {
	if !vmm.CanClone {
		return false, hostError("template", errors.New("this system has no memfd: runs boot cold"))
	}
	spec, err := rt.resolve(ctx, sh)
	if err != nil {
		return false, err
	}
	if spec.accel == "" { // a boot finds out
		b, err := rt.boot(ctx, spec.image, spec.memoryMB, netstack.Config{}, io.Discard)
		if err != nil {
			return false, hostError("boot", err)
		}
		spec.accel = b.accel
		b.close()
	}
	unlock, ok := rt.templates.Lock(spec.key())
	if !ok {
		return false, nil
	}
	defer unlock()
	if rt.templates.Check(spec.key()) == nil {
		return false, nil
	}
	if err := rt.templates.Room(int64(spec.memoryMB) << 20); err != nil {
		return false, hostError("template", err)
	}
	memory, err := vmm.NewMemory(int64(spec.memoryMB) << 20)
	if err != nil {
		return false, hostError("template", err)
	}
	defer memory.Close()
	b, err := rt.bootOnce(ctx, spec, bootDeadline, memory, netstack.Config{}, io.Discard)
	if err != nil {
		return false, hostError("boot", err)
	}
	defer b.close()
	timed, cancel := context.WithTimeout(ctx, bootDeadline)
	defer cancel()
	if !spec.fresh {
		if err := rehearse(timed, b.network, templateRehearsals, true); err != nil {
			return false, hostError("template", b.explain(err))
		}
	}
	state, err := b.machine.SaveState(timed)
	if err != nil {
		return false, hostError("template", err)
	}
	b.close()
	if err := rt.templates.Save(spec.key(), memory, state); err != nil {
		return false, hostError("template", err)
	}
	return true, nil
}
