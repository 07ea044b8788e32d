package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/vmm"
)

// Clone returns a machine that stood ready, or else one that is restored from the
// template of machines like this; the error is fs.ErrNotExist where there is none. A
// template that does not work is dropped.
func (s *Source) Clone(ctx context.Context, spec Spec, cfg Config) (*Machine, error) {
	for _, ready := range []func() *Machine{
		func() *Machine { return s.takeOwn(spec) },
		func() *Machine { return s.takeLeased(ctx, spec) },
	} {
		if m := ready(); m != nil && m.open(ctx, cfg) == nil {
			return m, nil
		}
	}
	m, err := s.spawn(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := m.open(ctx, cfg); err != nil {
		if ctx.Err() == nil { // else it is the run that was given up
			s.templateFailed(spec, err)
		}
		return nil, err
	}
	m.unfit = func(err error) { s.templateFailed(spec, err) }
	return m, nil
}

func (s *Source) takeOwn(spec Spec) *Machine {
	if s.pool == nil {
		return nil
	}
	m, _ := s.pool.take(spec)
	return m
}

func (s *Source) takeLeased(ctx context.Context, spec Spec) *Machine {
	if !s.opts.Lease {
		return nil
	}
	m, err := lease(ctx, s.opts.Home, spec)
	if err != nil {
		return nil // the daemon is gone, or has none
	}
	return m
}

// spawn starts a QEMU on a template's memory.
func (s *Source) spawn(ctx context.Context, spec Spec) (*Machine, error) {
	snapshot, err := s.loaded.load(s.templates, spec.Key())
	if err != nil {
		if errors.Is(err, ErrTemplate) {
			s.templateFailed(spec, err)
		}
		return nil, err
	}
	defer snapshot.Close()
	ours, theirs, err := netstack.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	vm, err := vmm.Start(ctx, s.config(spec, vmm.Config{Memory: snapshot.Memory, State: snapshot.Devices, NIC: theirs}))
	if err == nil {
		if err = snapshot.Ready(); err != nil {
			vm.Close()
			s.loaded.drop() // it is kept there
		}
	}
	if err != nil {
		ours.Close()
		return nil, err
	}
	s.templates.Used(spec.Key())
	return &Machine{Spec: spec, Origin: Cloned, Monitor: vm.Monitor, vm: vm, state: Spawned, devices: snapshot.Devices, link: ours}, nil
}

// restore feeds a spawned machine its device state; it then runs.
func (m *Machine) restore(ctx context.Context) error {
	if m.state != Spawned {
		return fmt.Errorf("restore: the machine is %s", m.state)
	}
	if err := m.vm.Restore(ctx, m.devices); err != nil {
		return err
	}
	m.devices = nil
	m.state = Running
	return nil
}

// run has the machine run, whatever state it is in.
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

// open gives a clone a network and has it run. Where that fails the machine is closed.
func (m *Machine) open(ctx context.Context, cfg Config) error {
	timed, cancel := context.WithTimeout(ctx, cloneDeadline)
	defer cancel()
	cfg.Network.Link = m.link
	network, err := netstack.New(cfg.Network) // the link is its own now
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

// Rehearsals: in a template until V8 has learned what a run takes (a clone's run then
// takes half the time under TCG); in a clone that is to stand ready, so that the
// emulator has translated it too.
const (
	templateRehearsals = 6
	cloneRehearsals    = 2
)

func (s *Source) rehearse(ctx context.Context, network *netstack.Network, times int, snapshot bool) error {
	for i := range times {
		if err := guest.Rehearse(ctx, network, s.opts.Program.Rehearsal, snapshot && i == times-1); err != nil {
			return err
		}
	}
	return nil
}

// ready takes a spawned clone as far as it goes without a run: it is restored, has
// run the throw-away script, so that its code is translated, and is paused.
func (s *Source) ready(ctx context.Context, m *Machine) error {
	timed, cancel := context.WithTimeout(ctx, cloneDeadline)
	defer cancel()
	network, err := netstack.New(netstack.Config{Link: m.link})
	if err != nil {
		return err
	}
	err = m.restore(timed)
	if err == nil && !m.Spec.Fresh {
		err = s.rehearse(timed, network, cloneRehearsals, false)
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

// maker makes a pool's machines; ready is the source's.
type maker struct{ *Source }

// spawn starts a clone; it makes the template that is missing.
func (mk maker) spawn(ctx context.Context, spec Spec) (*Machine, error) {
	m, err := mk.Source.spawn(ctx, spec)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = mk.MakeTemplate(ctx, spec); err == nil {
			m, err = mk.Source.spawn(ctx, spec)
		}
	}
	return m, err
}

// rest: no clone stands ready for now, so no template need be in memory.
func (mk maker) rest() { mk.loaded.drop() }

// loadedTemplates keeps templates in memory, sealed, for as long as they are good:
// a source that clones much need not copy one for each machine.
type loadedTemplates struct {
	mu     sync.Mutex
	kept   map[string]*Snapshot
	closed bool
}

// maxLoaded bounds the templates kept; each takes 60 to 200 MiB.
const maxLoaded = 2

// load returns the template of a key, a copy that the caller closes.
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

// drop lets go of all of them.
func (l *loadedTemplates) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, kept := range l.kept {
		kept.Close()
		delete(l.kept, key)
	}
}

// close is drop, and nothing is loaded any more.
func (l *loadedTemplates) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.drop()
}

// MakeTemplate makes the template that machines of a spec are then cloned from, or a
// successor in time. It boots a machine, has it run a throw-away script, and keeps its
// memory and the state of its devices. Where another process is making it, or it is
// there, it does nothing. It returns whether it made one.
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
	if s.templates.Check(spec.Key()) == nil && !s.templates.due(spec.Key()) {
		return false, nil
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
	timed, cancel := context.WithTimeout(ctx, bootDeadline)
	defer cancel()
	if !spec.Fresh {
		if err := s.rehearse(timed, m.network, templateRehearsals, true); err != nil {
			return false, m.Explain(err)
		}
	}
	devices, err := m.vm.SaveState(timed)
	if err != nil {
		return false, err
	}
	m.Close()
	if err := s.templates.Save(spec.Key(), memory, devices); err != nil {
		return false, err
	}
	return true, nil
}
