package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/vmm"
)

// ErrClosed means that a source was closed.
var ErrClosed = errors.New("closed")

// EventKind says what an Event is about.
type EventKind string

const (
	EventAccel EventKind = "accel" // an accelerator was tried and does not work
	// EventFallback: hardware acceleration was tried, or might have been, and TCG takes its place
	// for the first time since the host was booted.
	EventFallback EventKind = "fallback"
	EventRetry    EventKind = "retry" // something did not come up and is tried again, or done another way
)

// Event tells how a machine is being had.
type Event struct {
	Kind    EventKind
	Message string // one line for people
}

// Options say where machines come from.
type Options struct {
	Home   string       // templates, the cache and the pool daemon's socket are in it
	Images *image.Store // where the pool daemon finds the image of a clone that it is asked for
	Accel  vmm.Accel    // Auto, or the only one that may be used
	// Programs are what guests run before the code, by the names of the bundled images.
	Programs map[string]Program
	// Pool keeps clones ready in this process, where snapshots can be had; its zero
	// value keeps none.
	Pool PoolSize
	// Lease takes clones from the home's pool daemon, where one runs.
	Lease bool
	// Warm has another process make a template; nil has this one make it, in the
	// background.
	Warm func(Class)
	// Events, if not nil, receives what happens in the background. It is called from
	// several goroutines at once.
	Events func(Event)
}

// Program is the language's own program in the guest, which waits there for the code.
type Program struct {
	// Arg, if not nil, is an argument that bounds its memory, for a machine of that many MiB.
	Arg func(memoryMB int) string
	// Rehearsal is a throw-away program for it.
	Rehearsal guest.Rehearsal
	// Patience is how much longer than others the first rehearsal may take.
	Patience time.Duration
}

// ownPatience is the Patience with a custom image, which may import much ahead.
const ownPatience = 3 * time.Minute

// program returns what guests with an image run before the code.
func (s *Source) program(im *image.Image) Program {
	if im.Base == "" {
		return s.opts.Programs[im.Name]
	}
	p := s.opts.Programs[im.Base]
	p.Patience = max(p.Patience, ownPatience)
	return p
}

// Source is where machines come from. Any number of goroutines may use it at once.
type Source struct {
	opts      Options
	host      func(vmm.QEMU) vmm.Host
	cache     *Cache
	templates *Templates
	loaded    loadedTemplates
	pool      *pool[*Machine] // nil without one

	background context.Context // ends with Close
	stop       context.CancelFunc
	mu         sync.Mutex // group.Add against Close
	group      sync.WaitGroup

	tsc sync.Once // khz is measured
	khz int
}

// Open returns a source. Close frees it.
func Open(opts Options) *Source {
	if opts.Events == nil {
		opts.Events = func(Event) {}
	}
	s := &Source{
		opts:      opts,
		host:      vmm.ThisHost,
		cache:     OpenCache(filepath.Join(home.Dir(opts.Home).Cache(), "memo.json")),
		templates: OpenTemplates(home.Dir(opts.Home).Templates()),
		loaded:    loadedTemplates{kept: map[string]*Snapshot{}},
	}
	s.background, s.stop = context.WithCancel(context.Background())
	if opts.Pool.Max > 0 && CanClone {
		s.pool = newPool[*Machine](opts.Pool, maker{s}, HostMemory)
	}
	return s
}

// Templates returns the store of snapshots that machines are cloned from.
func (s *Source) Templates() *Templates { return s.templates }

// Pool returns the figures of the source's pool; zero without one.
func (s *Source) Pool() PoolStats {
	if s.pool == nil {
		return PoolStats{}
	}
	return s.pool.figures()
}

// QEMU returns the host's QEMU for an architecture.
func (s *Source) QEMU(ctx context.Context, arch image.Arch) (vmm.QEMU, error) {
	return vmm.FindQEMU(ctx, vmm.Arch(arch), s.cache)
}

// Spec finds out what a machine for an image is on this host; of the class it takes memory, processors and
// whether each clone has a fresh process.
func (s *Source) Spec(ctx context.Context, im *image.Image, sh Class) (Spec, error) {
	qemu, err := s.QEMU(ctx, im.Arch)
	if err != nil {
		return Spec{}, err
	}
	spec := Spec{Image: im, QEMU: qemu, MemoryMB: sh.MemoryMB, CPUs: sh.CPUs, Fresh: sh.FreshProcess, NoTSC: s.noTSC(im)}
	if spec.Accel = s.opts.Accel; spec.Accel == vmm.Auto {
		spec.Accel = s.known(spec).Accel
		s.tryHardware(spec)
	}
	return spec, nil
}

// HasTemplate reports whether machines of an image, with that memory, are cloned here. It looks, and finds
// nothing out about the host.
func (s *Source) HasTemplate(ctx context.Context, im *image.Image, memoryMB int) bool {
	qemu, err := s.QEMU(ctx, im.Arch)
	spec := Spec{Image: im, QEMU: qemu, MemoryMB: memoryMB, Accel: s.opts.Accel, NoTSC: s.noTSC(im)}
	if spec.Accel == vmm.Auto {
		spec.Accel = s.known(spec).Accel
	}
	return err == nil && s.templates.Check(spec.Key()) == nil
}

// Config is what is new about each machine.
type Config struct {
	Network netstack.Config
	Console io.Writer   // the beginning of what the guest prints; nil discards
	Events  func(Event) // told while the machine is being had, from that goroutine; nil discards
	Debug   *Debug      // of a machine that a debugger is to hold (BootOnce); else nil
	// Trace, if not nil, is what of a machine that is booted is traced.
	Trace *Trace
	// Keep, if not nil, has a machine that is booted be halted, and not end, when its
	// guest crashes (Machine.Halt). It is called where that comes before the guest is up, and the
	// machine is closed when it returns.
	Keep func(*Machine, error)
	// Place returns what a clone may have in its template's place when it begins (Machine.Placed), or nil. It is
	// called by the caller's goroutine.
	Place func() []byte
}

func (c Config) event(kind EventKind, msg string) {
	if c.Events != nil {
		c.Events(Event{kind, msg})
	}
}

// Warm sees to it that later machines like this one can be cloned: that there is a
// template, and before it is used up another. It does not wait.
func (s *Source) Warm(spec Spec) {
	if !CanClone {
		return
	}
	if spec.Folders != nil {
		s.Warm(spec.bare())
	}
	if spec.Accel == "" { // a boot has found it out
		spec.Accel = s.known(spec).Accel
	}
	if s.templates.GivenUp(spec.Key()) != nil {
		return
	}
	switch want := s.templates.Wants(spec.Key()); {
	case want == Nothing:
	case want == Missing && s.pool != nil && spec.Folders == nil && spec.Life == OneRun: // it makes its own
	case s.opts.Warm != nil:
		s.opts.Warm(spec.Class())
	default:
		s.inBackground(func(ctx context.Context) {
			if _, err := s.MakeTemplate(ctx, spec); err != nil && ctx.Err() == nil {
				s.opts.Events(Event{EventRetry, "no template could be made: " + err.Error()})
			}
		})
	}
}

// inBackground runs do until Close; after it, it does nothing.
func (s *Source) inBackground(do func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.background.Err() == nil {
		s.group.Go(func() { do(s.background) })
	}
}

// Stock has the pool keep its least number of machines ready. spec is called in the
// background; why it, or a machine, can't be had is in the pool's figures.
func (s *Source) Stock(spec func(context.Context) (Spec, error)) {
	if s.pool == nil {
		return
	}
	s.inBackground(func(ctx context.Context) {
		err := func() error {
			spec, err := spec(ctx)
			if err != nil {
				return err
			}
			if spec, err = s.Probe(ctx, spec); err != nil {
				return err
			}
			if _, err := s.MakeTemplate(ctx, spec); err != nil { // also where they were given up: who starts a pool wants it tried
				return err
			}
			s.pool.stock(spec)
			return nil
		}()
		if err != nil && ctx.Err() == nil {
			s.pool.fail(err)
		}
	})
}

// Probe returns the spec with an accelerator that boots its image here; where none is
// known it boots one to find out.
func (s *Source) Probe(ctx context.Context, spec Spec) (Spec, error) {
	if spec.Accel != "" {
		return spec, nil
	}
	m, err := s.Boot(ctx, spec, Config{})
	if err != nil {
		return spec, err
	}
	spec.Accel = m.Spec.Accel
	return spec, m.Close()
}

// templateFailure is the cache's key of the last one that had to be dropped.
const templateFailure = "last template that failed"

// templateFailed drops a template that can't be cloned. It counts if there was one: else
// it is another clone's of the same template, and if that was whole. A QEMU that somebody
// killed says nothing of its template.
func (s *Source) templateFailed(spec Spec, err error) {
	if killed(err) {
		return
	}
	had, stays := s.templates.Drop(spec.Key())
	if had && !errors.Is(err, ErrTemplate) {
		s.templates.Failed(spec.Key(), err)
	}
	if stays != nil {
		err = fmt.Errorf("%w; %w", err, stays)
	}
	s.cache.Put(templateFailure, time.Now().UTC().Format(time.RFC3339)+" "+err.Error())
}

func (s *Source) templateWorked(spec Spec) { s.templates.Worked(spec.Key()) }

// LastFailure says when and why a template had last to be dropped; why is "" if none was.
func (s *Source) LastFailure() (at time.Time, why string) {
	text, _ := s.cache.Get(templateFailure)
	when, why, _ := strings.Cut(text, " ")
	at, err := time.Parse(time.RFC3339, when)
	if err != nil {
		return at, ""
	}
	return at, why
}

// Settle waits for what runs in the background; the end of ctx ends it.
func (s *Source) Settle(ctx context.Context) {
	stop := context.AfterFunc(ctx, s.stop)
	defer stop()
	s.group.Wait()
}

// Close ends what runs in the background and frees the templates in memory and the
// pool's machines. Machines that were given out live on.
func (s *Source) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.group.Wait()
	if s.pool != nil {
		s.pool.close()
	}
	s.loaded.close()
	return nil
}
