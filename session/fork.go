package session

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// MaxForks bounds how many forks of a session, and of its forks, live at once.
const MaxForks = 16

// family counts the forks of a session, and of its forks.
type family struct {
	mu    sync.Mutex
	forks int // running forks
}

// take reserves slots for forks.
func (f *family) take(n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.forks+n > MaxForks {
		return &run.BusyError{
			What:  fmt.Sprintf("%d forks of this session live, and %d is the most: close some", f.forks, MaxForks),
			After: time.Minute,
		}
	}
	f.forks += n
	return nil
}

func (f *family) give(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forks -= n
}

// forking is the state from which forks continue.
type forking struct {
	parent   *Session
	snapshot *machine.Snapshot
	spec     machine.Spec
	copies   []forkedClient // one for each fork
	out      []byte         // files of /out that were already returned
	starting chan struct{}  // limits how many start at once
}

type forkedClient struct {
	client  *supervisor.Client
	running []*supervisor.Interpreter
}

// run returns a fork's run: it has the session's grants, without the host's files.
func (f *forking) run(s *Session) engine.Prepared {
	p := f.parent.made
	p.Live = f.parent.made.Live.Copy()
	p.Code.Supervisor, p.Code.Inputs, p.Code.Tell = sessionRun{s}, hostfiles.Set{}, nil
	return p
}

// get starts a fork's machine.
func (f *forking) get(source *machine.Source) func(context.Context, machine.Spec, machine.Config,
) (*machine.Machine, error) {
	return func(ctx context.Context, _ machine.Spec, cfg machine.Config) (*machine.Machine, error) {
		select {
		case f.starting <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		defer func() { <-f.starting }()
		return source.Fork(ctx, f.spec, f.snapshot, cfg)
	}
}

// Fork starts n sessions that continue from the state of this one, with its variables, files and processes. Later
// changes in one are not visible in another. Each has its own id, records and random numbers, and this session's
// remaining time. This session keeps its open connections; in the forks they are reset. Fork returns a BusyError when
// Pause does, and if more than MaxForks sessions would exist. It resumes a paused session first. If one fork can't
// start, none does.
func (s *Session) Fork(ctx context.Context, n int) ([]*Session, error) {
	if n < 1 || n > MaxForks {
		return nil, policy.Bad("count", fmt.Sprint(n), "must be from 1 to %d", MaxForks)
	}
	if !machine.CanClone {
		return nil, errors.New("sessions are forked on Linux only")
	}
	if err := s.renewCeiling(); err != nil {
		return nil, err
	}
	if err := s.family.take(n); err != nil {
		return nil, err
	}
	f, err := s.freeze(ctx, n)
	if err != nil {
		s.family.give(n)
		return nil, err
	}
	defer f.snapshot.Close()
	forks, errs := make([]*Session, n), make([]error, n)
	starting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if forks[i], errs[i] = s.fork(starting, f, i); errs[i] != nil {
				cancel(errs[i]) // the others
			}
		})
	}
	all.Wait()
	if errors.Join(errs...) != nil {
		for _, fork := range forks {
			if fork != nil {
				fork.Close()
			}
		}
		return nil, fmt.Errorf("fork the session: %w", context.Cause(starting))
	}
	return forks, nil
}

// freeze makes serve save the state for n forks.
func (s *Session) freeze(ctx context.Context, n int) (*forking, error) {
	if err := s.change(ctx); err != nil {
		return nil, err
	}
	defer func() { <-s.changing }()
	if uses, _ := s.usage.now(); uses > 0 {
		return nil, errStepping
	}
	if err := s.ensureRunning(ctx); err != nil {
		return nil, err
	}
	f := &forking{parent: s, copies: make([]forkedClient, n), starting: make(chan struct{}, max(2, runtime.NumCPU()))}
	s.forking = f
	if err := s.ask(ctx, s.forks); err != nil {
		return nil, fmt.Errorf("fork the session: %w", err)
	}
	return f, nil
}

// copied fills in the requested forking. The machine continues.
func (s *Session) copied(ctx context.Context, x *engine.Execution) error {
	f := s.forking
	held, cancel := context.WithTimeoutCause(ctx, holdPatience, errNotHeld)
	defer cancel()
	err := s.client.Hold(held)
	if err == nil {
		f.spec = x.Machine.Spec
		if f.snapshot, err = s.manager.Engine.Source.Snapshot(ctx, x.Machine); err == nil {
			f.out = s.artifacts.kept()
			state := s.client.State(s.steps.interpreters())
			for i := range f.copies {
				f.copies[i].client, f.copies[i].running = supervisor.Restore(state)
			}
		}
	}
	if x.Machine.Alive() {
		err = errors.Join(err, s.client.Continue(nil))
	}
	return err
}

// fork starts one of the forks. Its slot in the family is released when the fork has ended.
func (s *Session) fork(ctx context.Context, f *forking, at int) (*Session, error) {
	c := newSession(s.manager, s.holder(), s.limits)
	c.beganUnder = s.beganUnder
	c.lease.set(s.lease.age())
	c.request, c.own = s.request, s.own
	c.Parent, c.Image, c.Language, c.family, c.from = s.ID, s.Image, s.Language, s.family, f
	c.dir, c.env, c.ca, c.client = s.dir, s.env, s.ca, f.copies[at].client
	c.artifacts.restore(f.out)
	c.steps.add(f.copies[at].running...)
	if err := c.begin(ctx, catalog.Request{}, s.tell, func() { s.family.give(1) }); err != nil {
		return nil, err
	}
	err := c.renew(ctx, f.copies[at].running)
	if err == nil {
		err = project.Inherit(s.recordDir(), c.recordDir(), c.ID)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
