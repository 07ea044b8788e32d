package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/vmm"
)

// Get returns a machine whose guest waits for its code: a ready clone, else a clone of a template, else a freshly
// booted machine.
func (s *Source) Get(ctx context.Context, spec Spec, cfg Config) (*Machine, error) {
	return get(ctx, s, spec, cfg)
}

// Clone is like Get but boots nothing; the error is fs.ErrNotExist if there is no template.
func (s *Source) Clone(ctx context.Context, spec Spec, cfg Config) (*Machine, error) {
	return clone(ctx, s, spec, cfg)
}

// ways lists the operations that produce a machine. Source implements all of them.
type ways interface {
	// pooled and leased return a ready clone, from this process or the pool daemon, or nil.
	pooled(Spec) *Machine
	leased(context.Context, Spec) *Machine
	// spawn starts a clone of the spec's template.
	spawn(context.Context, Spec) (*Machine, error)
	// open connects a clone to a network and starts it. On an error, open closes the clone.
	open(context.Context, *Machine, Config) error
	Boot(context.Context, Spec, Config) (*Machine, error)
	// templateFailed drops a template; templateWorked notes that a clone of it responds.
	templateFailed(Spec, error)
	templateWorked(Spec)
}

func get(ctx context.Context, w ways, spec Spec, cfg Config) (*Machine, error) {
	m, err := clone(ctx, w, spec, cfg)
	if err != nil && ctx.Err() == nil && spec.Folders != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			cfg.event(EventRetry, err.Error()+"; the folders are sent instead")
		}
		spec = spec.bare()
		m, err = clone(ctx, w, spec, cfg)
	}
	if err == nil || ctx.Err() != nil {
		return m, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		cfg.event(EventRetry, err.Error()+"; booting instead")
	}
	return w.Boot(ctx, spec, cfg)
}

func clone(ctx context.Context, w ways, spec Spec, cfg Config) (*Machine, error) {
	ready := []func() *Machine{
		func() *Machine { return w.pooled(spec) },
		func() *Machine { return w.leased(ctx, spec) },
	}
	if spec.Folders != nil || spec.Life == Lasting { // no ready clone has folders or can last
		ready = nil
	}
	for _, ready := range ready {
		if m := ready(); m != nil && w.open(ctx, m, cfg) == nil {
			return m, nil
		}
	}
	m, err := w.spawn(ctx, spec)
	if err != nil {
		if errors.Is(err, ErrTemplate) {
			w.templateFailed(spec, err)
		}
		return nil, err
	}
	if err := w.open(ctx, m, cfg); err != nil {
		if ctx.Err() == nil { // otherwise the run was cancelled
			w.templateFailed(spec, err)
		}
		return nil, err
	}
	m.unfit, m.fit = func(err error) { w.templateFailed(spec, err) }, func() { w.templateWorked(spec) }
	return m, nil
}

func (s *Source) pooled(spec Spec) *Machine {
	if s.pool == nil {
		return nil
	}
	m, _ := s.pool.take(spec)
	return m
}

func (s *Source) leased(ctx context.Context, spec Spec) *Machine {
	if !s.opts.Lease {
		return nil
	}
	m, err := lease(ctx, s.opts.Home, spec)
	if err != nil {
		return nil // the daemon is gone, or has no clone
	}
	return m
}

// spawn starts a QEMU on a template's memory.
func (s *Source) spawn(ctx context.Context, spec Spec) (*Machine, error) {
	if err := s.templates.GivenUp(spec.Key()); err != nil {
		return nil, err
	}
	if vmm.MapsFiles(spec.QEMU) {
		if m, err := s.spawnOn(ctx, spec, s.templates.Map); !errors.Is(err, vmm.ErrNotHeld) {
			return m, err
		}
	}
	if spec.Folders != nil { // large, and not kept in memory
		return s.spawnOn(ctx, spec, s.templates.Load)
	}
	return s.spawnOn(ctx, spec, func(key string) (*Snapshot, error) { return s.loaded.load(s.templates, key) })
}

func (s *Source) spawnOn(ctx context.Context, spec Spec, load func(key string) (*Snapshot, error)) (*Machine, error) {
	snapshot, err := load(spec.Key())
	if err != nil {
		return nil, err
	}
	defer snapshot.Close()
	m, err := s.start(ctx, spec, snapshot)
	if err != nil {
		if snapshot.Failed() {
			s.loaded.drop() // the failed snapshot is there
		}
		return nil, err
	}
	s.templates.Used(spec.Key())
	return m, nil
}

// restore loads the device state into a spawned machine, which then runs.
func (m *Machine) restore(ctx context.Context) error {
	if m.state != Spawned {
		return fmt.Errorf("restore: the machine is %s", m.state)
	}
	if err := m.vm.Restore(ctx, m.devices); err != nil {
		return err
	}
	if m.Spec.Life == Lasting {
		m.began = m.devices
	}
	m.devices = nil
	m.state = Running
	return nil
}

// run starts the machine, whatever its state.
func (m *Machine) run(ctx context.Context) error {
	switch m.state {
	case Spawned:
		return m.restore(ctx)
	case Paused:
		if err := m.vm.Resume(ctx); err != nil {
			return err
		}
		m.state = Running
	}
	return nil
}

// open connects a clone to a network and starts it. If that fails, open closes the machine.
func (*Source) open(ctx context.Context, m *Machine, cfg Config) error {
	deadline := cloneDeadline
	if m.Origin == Resumed { // a resumed machine has no alternative to retry with
		deadline = connectDeadline
	}
	timed, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	cfg.Network.Link = m.link
	network, err := netstack.New(cfg.Network) // the network now owns the link
	if err != nil {
		m.Close()
		return err
	}
	m.network, m.console = network, newConsole(cfg.Console)
	m.vm.ReadConsole(m.console)
	if err := m.run(timed); err != nil {
		err = m.Explain(err)
		m.Close()
		return err
	}
	return nil
}

// Numbers of rehearsals. A template rehearses until V8 has learned what a run needs; a clone's run then takes
// half the time under TCG. A ready clone rehearses so that the emulator has translated the code too.
const (
	templateRehearsals = 6
	cloneRehearsals    = 2
)

// rehearse runs rehearsals on a machine with the given image. bring, if not nil, prepares the first one, and its
// effects stay.
func (s *Source) rehearse(ctx context.Context, im *image.Image, network *netstack.Network, times int, snapshot bool,
	bring func(context.Context, *guest.Conn) error) error {
	for i := range times {
		if err := guest.Rehearse(ctx, network, s.program(im).Rehearsal, snapshot && i == times-1, bring); err != nil {
			return err
		}
		bring = nil
	}
	return nil
}

// ready prepares a spawned clone as far as possible without a run. It restores the clone, runs the throw-away
// script so that its code is translated, and pauses the clone.
func (s *Source) ready(ctx context.Context, m *Machine) error {
	timed, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	network, err := netstack.New(netstack.Config{Link: m.link})
	if err != nil {
		return err
	}
	err = m.restore(timed)
	if err == nil && !m.Spec.Fresh {
		err = s.rehearse(timed, m.Spec.Image, network, cloneRehearsals, false, nil)
	}
	if err == nil {
		err = m.vm.Pause(timed)
	}
	if err != nil {
		network.Close()
		return err
	}
	if m.link, err = network.Detach(); err != nil {
		return err
	}
	m.Origin = Pooled
	m.state = Paused
	return nil
}

// maker makes a pool's machines.
type maker struct{ *Source }

// spawn starts a clone, and first makes the template if it is missing.
func (mk maker) spawn(ctx context.Context, spec Spec) (*Machine, error) {
	m, err := mk.Source.spawn(ctx, spec)
	if errors.Is(err, ErrTemplate) {
		mk.templateFailed(spec, err)
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) && !errors.As(err, new(*GivenUp)) {
		if _, err = mk.MakeTemplate(ctx, spec); err == nil {
			m, err = mk.Source.spawn(ctx, spec)
		}
	}
	return m, err
}

// ready calls the source's ready; a clone that fails to become ready is a failure of its template.
func (mk maker) ready(ctx context.Context, m *Machine) error {
	err := mk.Source.ready(ctx, m)
	if err != nil && ctx.Err() == nil {
		err = m.ended(err)
		mk.templateFailed(m.Spec, err)
	}
	return err
}

// rest drops the templates in memory: no clone is kept ready for now.
func (mk maker) rest() { mk.loaded.drop() }

// loadedTemplates keeps sealed templates in memory as long as they are valid. A source that clones often then
// need not copy a template for each machine.
type loadedTemplates struct {
	mu     sync.Mutex
	kept   map[string]*Snapshot
	closed bool
}

// maxLoaded bounds the templates kept; each takes 60 to 200 MiB.
const maxLoaded = 2

// load returns a duplicate of the template of a key, which the caller closes.
func (l *loadedTemplates) load(store *Templates, key string) (*Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	created, err := store.Created(key)
	if kept, ok := l.kept[key]; ok {
		if err == nil && kept.Created.Equal(created) {
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
	l.kept[key] = t
	return t.Dup()
}

// drop closes all loaded templates.
func (l *loadedTemplates) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, kept := range l.kept {
		kept.Close()
		delete(l.kept, key)
	}
}

// close drops everything and refuses further loads.
func (l *loadedTemplates) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.drop()
}

// MakeTemplate makes the template for later clones of a spec, or its successor. It boots a machine, runs a
// throw-away script, and saves the memory and the device state. If the template exists or another process is
// making it, MakeTemplate does nothing. It returns whether it made one.
func (s *Source) MakeTemplate(ctx context.Context, spec Spec) (bool, error) {
	if !CanClone {
		return false, errNoMemfd
	}
	spec, err := s.Probe(ctx, spec)
	if err != nil {
		return false, err
	}
	unlock, ok := s.templates.Lock(spec.Key())
	if !ok {
		return false, nil
	}
	defer unlock()
	if s.templates.GivenUp(spec.Key()) != nil {
		s.templates.Worked(spec.Key()) // the caller wants another try
	}
	if s.templates.Check(spec.Key()) == nil && !s.templates.due(spec.Key()) {
		return false, nil
	}
	if spec.Folders != nil {
		if err := spec.Folders.Settle(ctx); err != nil {
			return false, err
		}
	}
	if err := s.templates.Room(int64(spec.MemoryMB) << 20); err != nil {
		return false, err
	}
	memory, err := NewMemory(int64(spec.MemoryMB) << 20)
	if err != nil {
		return false, err
	}
	defer memory.Close()
	m, err := s.boot(ctx, spec, memory, Config{})
	if err != nil {
		return false, fmt.Errorf("boot: %w", err)
	}
	defer m.Close()
	patience := templateDeadline + s.program(spec.Image).Patience
	var folders func(context.Context, *guest.Conn) error
	if spec.Folders != nil {
		patience += spec.Folders.Patience()
		folders = spec.Folders.Put
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if !spec.Fresh {
		if err := s.rehearse(timed, spec.Image, m.network, templateRehearsals, true, folders); err != nil {
			return false, s.notMade(ctx, spec, m.Explain(err))
		}
	}
	devices, err := m.vm.SaveState(timed)
	if err != nil {
		return false, s.notMade(ctx, spec, err)
	}
	m.Close()
	if err := s.templates.Save(spec.Key(), memory, devices); err != nil {
		return false, err
	}
	return true, nil
}

// notMade counts a failure: a machine booted but could not be made a template.
func (s *Source) notMade(ctx context.Context, spec Spec, err error) error {
	if ctx.Err() == nil && !killed(err) {
		s.templates.Failed(spec.Key(), err)
	}
	return err
}
