package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// A session's machine runs or, while nobody needs it, is saved in a folder of the home: memory and device state.
// One goroutine (serve) decides which; callers send requests to it.

// sessionState is the state of a session.
type sessionState int

const (
	sessionRuns sessionState = iota
	sessionPaused
)

// errPaused is the error of a paused machine's streams, and of what does not resume it.
var errPaused = errors.New("the session is paused")

// serve carries a session's frames until the session ends, by itself or at the end of its life; meanwhile it
// pauses and resumes the machine.
func (s *Session) serve(ctx context.Context, x *engine.Execution, conn *guest.Conn) error {
	begin := time.Now()
	timed, cancel := s.lease.start(ctx, begin, s.limits.Life)
	defer cancel()
	serial := x.Redactor.Writer(x.Rec.Stderr())
	defer serial.Close()
	folder := paused.Open(s.manager.Engine.Home).Folder(x.Rec.ID)
	defer func() {
		if !s.left {
			_ = machine.RemovePause(folder)
			project.Forget(x.Rec.Dir())
		}
	}()
	s.exposed = x.Code.Exposed
	defer func() {
		x.Res.Duration.Run = time.Since(begin)
		x.Machine.Close()
		x.Rec.Drops, _ = json.Marshal(x.Machine.Drops())
	}()
	tick := time.NewTicker(idleTick(s.limits.Idle))
	defer tick.Stop()
	for first := true; ; first = false {
		paused, err := s.converse(timed, x, conn, serial, folder, tick.C, first)
		if err != nil || !paused {
			return err
		}
		setStatus(x, record.Paused)
		if conn, err = s.waitForUse(timed, x, folder); err != nil {
			return err
		}
	}
}

// converse serves a session's machine until it is paused, or ends.
func (s *Session) converse(timed context.Context, x *engine.Execution, conn *guest.Conn, serial io.Writer,
	folder string, tick <-chan time.Time, first bool,
) (paused bool, err error) {
	input, to := io.Pipe()
	if err := s.client.Continue(to); err != nil { // before Stream writes to the client; output arrives when Stream reads
		conn.Close()
		return false, failure.At("session", x.Machine.Explain(err))
	}
	carried, stop := context.WithCancelCause(timed)
	defer stop(nil)
	over := make(chan error, 1)
	go func() {
		end, err := conn.Stream(carried, input, s.client, serial)
		if err == nil {
			engine.SetEnd(x.Res, x.Code.Language, end, "")
		}
		input.CloseWithError(io.ErrClosedPipe) // nobody reads it any more
		over <- err
	}()
	end := func() {
		stop(errPaused)
		conn.Close()
		<-over
	}
	if first {
		s.hints = x.Hints
		s.begun(x.Rec, x.Redactor, x.Res)
	}
	watch := idleness{limit: s.limits.Idle}
	for {
		select {
		case now := <-tick:
			did := s.work(x.Machine)
			if !did.busy { // this delays no step
				x.WarmNext()
			}
			if watch.over(now, did) && s.pauseIfIdle(timed, x, folder) {
				end()
				return true, nil
			}
		case err := <-over:
			stop(nil)
			conn.Close()
			if err != nil && timed.Err() == nil { // otherwise somebody ended it, which is reason enough
				err = x.Machine.Explain(err)
			}
			if err != nil {
				return false, failure.At("session", err)
			}
			return false, nil
		case ask := <-s.pauses:
			err := s.sleep(timed, x, folder)
			if err == nil {
				end()
			}
			ask <- err
			if err == nil {
				return true, nil
			}
		case ask := <-s.forks:
			ask <- s.copied(timed, x)
		}
	}
}

// waitForUse waits until the session is needed, and resumes its machine. If the host can't do that now, the caller gets
// the error, and the session stays paused.
func (s *Session) waitForUse(ctx context.Context, x *engine.Execution, folder string) (*guest.Conn, error) {
	for {
		var ask chan error
		select {
		case ask = <-s.resumes:
		case <-ctx.Done():
			s.left = errors.Is(context.Cause(ctx), engine.ErrLeft)
			return nil, failure.At("session", context.Cause(ctx))
		}
		conn, whole, err := s.restore(ctx, x, folder)
		if err == nil {
			setStatus(x, record.Running)
		}
		ask <- err
		switch {
		case err == nil:
			return conn, nil
		case !whole:
			return nil, failure.At("resume", err)
		}
	}
}

var errNotHeld = errors.New("its program does not hold its output")

// holdPatience bounds the wait for the session's program to confirm that it holds its output.
const holdPatience = 10 * time.Second

// sleep pauses the machine. After an error the machine continues.
func (s *Session) sleep(ctx context.Context, x *engine.Execution, folder string) error {
	held, cancel := context.WithTimeoutCause(ctx, holdPatience, errNotHeld)
	defer cancel()
	err := s.client.Hold(held)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(folder), 0o700)
	}
	x.Live.Lock() // the policy must not change until the note is written
	defer x.Live.Unlock()
	if err == nil {
		x.Machine.Note, err = s.note(x)
	}
	if err == nil {
		err = s.manager.Engine.Source.Pause(ctx, x.Machine, folder)
	}
	if err == nil {
		x.Detach()
	}
	if err != nil && x.Machine.Alive() {
		err = errors.Join(err, s.client.Continue(nil))
	}
	return err
}

// restore resumes the machine. After an error, whole means that the folder still contains the pause, so that a
// later attempt can resume the session.
func (s *Session) restore(ctx context.Context, x *engine.Execution, folder string,
) (conn *guest.Conn, whole bool, err error) {
	spec := x.Spec
	if spec.QEMU, err = s.manager.Engine.Source.QEMU(ctx, spec.Image.Arch); err != nil { // QEMU may have been replaced
		return nil, true, err
	}
	err = x.Resume(func(cfg machine.Config) (*machine.Machine, error) {
		return resume(ctx, s.manager.Engine.Source, folder, spec, cfg)
	})
	if err != nil {
		return nil, !errors.Is(err, machine.ErrPause), err
	}
	m := x.Machine
	x.Later(func() { m.Close() })
	if lacks := m.Jail().Lacks(x.Granted.RequireJail); len(lacks) > 0 {
		err = &run.JailError{Lacks: lacks}
	} else {
		conn, err = m.Rejoin(ctx)
	}
	if err == nil {
		x.Attach(m)
	} else {
		m.Close()
		s.steps.lose(
			"its machine was resumed and could not be used: " +
				"it continues from its pause once more, and what ran in the machine meanwhile is lost",
		)
	}
	return conn, true, err
}

// use marks the session as needed until done is called, and resumes a paused one.
func (s *Session) use(ctx context.Context) (done func(), err error) {
	return s.begins(ctx, s.ensureRunning)
}

// useRunning is like use, but does not resume a paused session: the error is then errPaused.
func (s *Session) useRunning(ctx context.Context) (done func(), err error) {
	return s.begins(ctx, func(context.Context) error {
		if s.state == sessionPaused {
			return errPaused
		}
		return nil
	})
}

// begins begins a use of the session. run makes sure that its machine runs.
func (s *Session) begins(ctx context.Context, run func(context.Context) error) (done func(), err error) {
	if err := s.change(ctx); err != nil {
		return nil, err
	}
	defer func() { <-s.changing }()
	select {
	case <-s.done:
		return nil, s.gone()
	default:
	}
	if s.Policy.Effective.Audit { // the entries of this use are written later
		if err := s.manager.Engine.Journal.Room(); err != nil {
			return nil, failure.Host("audit", fmt.Errorf("the policy has audit = \"required\": %w", err))
		}
	}
	if err := run(ctx); err != nil {
		return nil, err
	}
	return s.usage.begin(true), nil
}

// change waits for the right to change the session's state; the caller must release changing afterwards.
func (s *Session) change(ctx context.Context) error {
	select {
	case s.changing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ensureRunning resumes a session that is paused.
func (s *Session) ensureRunning(ctx context.Context) error {
	if s.state == sessionPaused && s.firm {
		return errPaused
	}
	if s.state == sessionPaused {
		if err := s.renewCeiling(); err != nil {
			return fmt.Errorf("resume the session: %w", err)
		}
		if err := s.ask(context.WithoutCancel(ctx), s.resumes); err != nil {
			return fmt.Errorf("resume the session: %w", err)
		}
		s.state = sessionRuns
		s.manager.resumed(s)
	}
	return nil
}

// errStepping means that a running step prevents a pause or a fork.
var errStepping = &run.BusyError{What: "a step of this session is under way", After: time.Second}

// ask sends serve a request.
func (s *Session) ask(ctx context.Context, of chan chan error) error {
	answer := make(chan error, 1)
	select {
	case of <- answer:
	case <-s.done:
		return s.gone()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-answer:
		return err
	case <-s.done:
		return s.gone()
	}
}

// Pause saves the session's machine to the disk and frees its memory. The next step, command or file operation resumes
// the machine. Nothing is lost except open connections, which are reset. Pause is a BusyError during one of these
// calls, but not during an Exec that has no time limit and has started its command. It refuses a session whose machine
// holds secrets, which would be on the disk; secrets that are bound to hosts are not in the machine. The session's Life
// continues.
func (s *Session) Pause(ctx context.Context) error { return s.pause(ctx, false) }

// PauseFirmly is Pause, but only Resume resumes the session. Everything else that needs the machine is an error until
// then, or waits.
func (s *Session) PauseFirmly(ctx context.Context) error { return s.pause(ctx, true) }

func (s *Session) pause(ctx context.Context, firm bool) error {
	if s.exposed > 0 {
		return errors.New(
			"a session whose machine holds secrets is not paused: they would be on the disk; bind them to hosts (NAME@HOST)",
		)
	}
	if !machine.CanClone {
		return errors.New("sessions are paused on Linux only")
	}
	files := s.packFiles(ctx)
	if files != nil {
		defer files.Close()
	}
	if err := s.change(ctx); err != nil {
		return err
	}
	defer func() { <-s.changing }()
	uses, calls := s.usage.now()
	switch {
	case s.state == sessionPaused:
		s.firm = s.firm || firm
		return nil
	case uses > 0:
		return errStepping
	}
	give, err := s.manager.pausedRoom(s)
	if err != nil {
		return err
	}
	if err := s.ask(ctx, s.pauses); err != nil {
		give()
		return fmt.Errorf("pause the session: %w", err)
	}
	s.state, s.firm = sessionPaused, firm
	s.keepFiles(files, calls)
	s.manager.settle(s, paused.Open(s.manager.Engine.Home).Folder(s.ID))
	return nil
}

// Resume resumes a paused session's machine, as a step would.
func (s *Session) Resume(ctx context.Context) error {
	done, err := s.begins(ctx, func(ctx context.Context) error {
		s.firm = false
		return s.ensureRunning(ctx)
	})
	if err == nil {
		done()
	}
	return err
}

// Paused reports whether the session's machine is on the disk.
func (s *Session) Paused() bool {
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	return s.manager.sessions[s] > 0
}

// setStatus records whether the session's machine runs. The record keeps a failure as its own error.
func setStatus(x *engine.Execution, is record.Status) {
	x.Rec.Status = is
	_ = x.Rec.Update()
}
