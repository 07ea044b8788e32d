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

// EventKind is the kind of an Event.
type EventKind string

const (
	EventAccel EventKind = "accel" // an accelerator was tried and does not work
	// EventFallback: hardware acceleration was tried or possible, and TCG replaces it for the first time since
	// the host was booted.
	EventFallback EventKind = "fallback"
	EventRetry    EventKind = "retry" // something failed to start and is retried, or done another way
)

// Event reports progress in getting a machine.
type Event struct {
	Kind    EventKind
	Message string // one line for people
}

// Options configure a Source.
type Options struct {
	Home   string       // contains the templates, the cache and the pool daemon's socket
	Images *image.Store // where the pool daemon finds the image of a requested clone
	Accel  vmm.Accel    // Auto, or the only one that may be used
	// Programs run in guests before the code, by the names of the bundled images.
	Programs map[string]Program
	// Pool keeps clones ready in this process, where snapshots are possible; its zero value keeps none.
	Pool PoolSize
	// Lease takes clones from the home's pool daemon, if one runs.
	Lease bool
	// Warm makes another process make a template; with nil this process makes it, in the background.
	Warm func(Class)
	// Events, if not nil, receives events from the background. Several goroutines call it at once.
	Events func(Event)
}

// Program is the language's own program in the guest, which waits there for the code.
type Program struct {
	// Arg, if not nil, returns an argument that bounds its memory, for a machine of that many MiB.
	Arg func(memoryMB int) string
	// Rehearsal is its throw-away program.
	Rehearsal guest.Rehearsal
	// Patience is the extra time for the first rehearsal.
	Patience time.Duration
}

// ownPatience is the Patience with a custom image, which may import much ahead.
const ownPatience = 3 * time.Minute

// program returns the program that guests with an image run before the code.
func (s *Source) program(im *image.Image) Program {
	if im.Base == "" {
		return s.opts.Programs[im.Name]
	}
	p := s.opts.Programs[im.Base]
	p.Patience = max(p.Patience, ownPatience)
	return p
}

// Source makes machines. Any number of goroutines may use it at once.
type Source struct {
	opts      Options
	host      func(vmm.QEMU) vmm.Host
	cache     *Cache
	templates *Templates
	loaded    loadedTemplates
	pool      *pool[*Machine] // nil without a pool

	background context.Context // ends with Close
	stop       context.CancelFunc
	mu         sync.Mutex // orders group.Add before Close
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

// Templates returns the store of templates.
func (s *Source) Templates() *Templates { return s.templates }

// Pool returns the figures of the source's pool; zero without a pool.
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

// Spec returns the spec of machines for an image on this host. Of the class it uses memory, processors and
// FreshProcess.
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

// HasTemplate reports whether machines of an image, with that memory, are cloned here. It measures nothing on the
// host.
func (s *Source) HasTemplate(ctx context.Context, im *image.Image, memoryMB int) bool {
	qemu, err := s.QEMU(ctx, im.Arch)
	spec := Spec{Image: im, QEMU: qemu, MemoryMB: memoryMB, Accel: s.opts.Accel, NoTSC: s.noTSC(im)}
	if spec.Accel == vmm.Auto {
		spec.Accel = s.known(spec).Accel
	}
	return err == nil && s.templates.Check(spec.Key()) == nil
}

// Config is what differs for each machine.
type Config struct {
	Network netstack.Config
	Console io.Writer   // receives the beginning of the guest's output; nil discards
	Events  func(Event) // called from the goroutine that gets the machine; nil discards
	Debug   *Debug      // for a machine with a debugger (BootOnce); else nil
	// Trace, if not nil, selects what is traced in a booted machine.
	Trace *Trace
	// Keep, if not nil, makes a booted machine halt instead of exit when its guest crashes (Machine.Halt). If
	// that happens before the guest is up, Keep is called, and the machine is closed when Keep returns.
	Keep func(*Machine, error)
}

func (c Config) event(kind EventKind, msg string) {
	if c.Events != nil {
		c.Events(Event{kind, msg})
	}
}

// Warm ensures that later machines of this spec can be cloned: that there is a template, and a successor before
// it is used up. Warm does not wait.
func (s *Source) Warm(spec Spec) {
	if !CanClone {
		return
	}
	if spec.Folders != nil {
		s.Warm(spec.bare())
	}
	if spec.Accel == "" { // a boot has found the accelerator
		spec.Accel = s.known(spec).Accel
	}
	if s.templates.GivenUp(spec.Key()) != nil {
		return
	}
	switch want := s.templates.Wants(spec.Key()); {
	case want == Nothing:
	case want == Missing && s.pool != nil && spec.Folders == nil && spec.Life == OneRun: // the pool makes its own
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

// inBackground runs do until Close; after Close it does nothing.
func (s *Source) inBackground(do func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.background.Err() == nil {
		s.group.Go(func() { do(s.background) })
	}
}

// Stock makes the pool keep its minimum of machines ready. spec is called in the background. If spec or a machine
// fails, the pool's figures contain the reason.
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
			// Also after they were given up, since whoever starts a pool wants another try.
			if _, err := s.MakeTemplate(ctx, spec); err != nil {
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

// Probe returns the spec with an accelerator that boots its image here. If none is known, it boots a machine to
// find out.
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

// templateFailure is the cache key of the last failed template.
const templateFailure = "last template that failed"

// templateFailed drops a template that can't be cloned. The failure counts only if the template was there and
// undamaged: otherwise another clone of the same template was counted. A QEMU that somebody killed proves nothing
// about its template.
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

// LastFailure returns when and why a template was last dropped; why is "" if none was.
func (s *Source) LastFailure() (at time.Time, why string) {
	text, _ := s.cache.Get(templateFailure)
	when, why, _ := strings.Cut(text, " ")
	at, err := time.Parse(time.RFC3339, when)
	if err != nil {
		return at, ""
	}
	return at, why
}

// Settle waits for the work in the background; the end of ctx stops the work.
func (s *Source) Settle(ctx context.Context) {
	stop := context.AfterFunc(ctx, s.stop)
	defer stop()
	s.group.Wait()
}

// Close stops the work in the background and frees the templates in memory and the pool's machines. Machines in
// use continue.
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
