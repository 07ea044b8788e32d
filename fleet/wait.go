package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
)

// pollState is the time between reads of the entry without a notice of changes.
const pollState = time.Second

// wait passes on the run's output until the run is over, and returns its result.
func (s *submission) wait(ctx context.Context, heard *ear) (*unitask.Result, error) {
	tick := time.NewTicker(min(pollState, s.c.config.Times.Beat))
	defer tick.Stop()
	s.clock.limit = limit(s.run, s.c.config.Times)
	look := true
	var last entry // read before
	var revision uint64
	var missing time.Time // since when there is no entry
	for {
		if look {
			e, at, err := s.get(ctx)
			if err == nil {
				last, revision = e, at
				s.clock.see(e, time.Now())
			}
			if late := s.clock.late(time.Now()); late > 0 && !last.State.over() {
				if lost := s.overrun(ctx, last, revision, late); lost != nil {
					s.drain(heard)
					return s.finish(ctx, *lost)
				}
			}
			switch {
			case err == nil && (e.State.over() || s.follow(ctx, e, revision)):
				s.drain(heard)
				return s.finish(ctx, e)
			case !errors.Is(err, jetstream.ErrKeyNotFound):
				missing = time.Time{}
			case missing.IsZero():
				missing = time.Now()
			}
			if errors.Is(err, errMalformed) || !missing.IsZero() && time.Since(missing) > s.c.config.Times.Lease {
				return nil, hostError(fmt.Errorf("run %s is no longer in the fleet: %w", s.id, err))
			}
		}
		look = false
		select {
		case <-ctx.Done():
			return s.cancel()
		case <-tick.C:
			look = true
		case <-heard.ready:
			if msg := heard.take(); msg != nil {
				look = s.take(msg)
			}
			heard.again() // after the entry was read: later messages may be of another attempt
		}
		if s.broken != nil { // its reader closed it
			_, _ = s.cancel()
			return nil, s.broken
		}
	}
}

// getTime bounds one read of the entry, so that the clock is checked in between.
const getTime = 5 * time.Second

func (s *submission) get(ctx context.Context) (entry, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, getTime)
	defer cancel()
	return s.store.get(ctx, s.id)
}

// follow handles a change of a run that is not over, and reports whether it is over now.
func (s *submission) follow(ctx context.Context, e entry, revision uint64) (over bool) {
	s.begin(e)
	if e.State == Claimed {
		kv, err := s.c.workersStore(ctx)
		if err == nil {
			_, err = kv.Get(ctx, e.Worker)
		}
		switch {
		case err == nil:
			s.unseen = time.Time{}
		case !errors.Is(err, jetstream.ErrKeyNotFound):
		case s.unseen.IsZero():
			s.unseen = time.Now()
		case time.Since(s.unseen) > s.c.config.Times.Lease && !Repeatable(s.run.Request):
			// Perhaps no other worker is present to note the loss.
			next := e
			next.State, next.Why = Lost, again(s.run.Request, e)
			if _, err := s.store.replace(ctx, s.id, next, revision); err == nil {
				s.nudge()
				return false // seen at the next read
			}
		}
		return false
	}
	if workers, err := s.c.Workers(ctx); err == nil && len(workers) == 0 && !s.said {
		s.said = true
		s.run.Events(unitask.Event{Kind: unitask.EventRetry, Message: "the fleet has no worker now: waiting for one"})
	}
	return false
}

// begin notes the entry's attempt.
func (s *submission) begin(e entry) {
	if e.Attempt <= s.attempt || e.Reading {
		return
	}
	if e.Attempt > 1 { // also for submitters that join later
		why := "a worker went away"
		if e.Losses > s.losses {
			why = "the worker was lost"
		}
		s.run.Again(fmt.Sprintf("%s; the run was made again on worker %s, attempt %d", why, e.Worker, e.Attempt))
		clear(s.have)
		clear(s.lag)
	}
	s.attempt, s.losses = e.Attempt, e.Losses
}

// nudge asks the worker to read the entry.
func (s *submission) nudge() {
	_ = s.c.nc.Publish(subjectCancel+s.c.config.Tenant+"."+s.id, nil)
	_ = s.c.nc.FlushTimeout(time.Second)
}

// cancelTime bounds the wait for a run's cancellation.
const cancelTime = 10 * time.Second

// cancel ends the run in the fleet, unless it is over.
func (s *submission) cancel() (*unitask.Result, error) {
	ctx, stop := context.WithTimeout(context.Background(), cancelTime)
	defer stop()
	for ctx.Err() == nil {
		e, revision, err := s.store.get(ctx, s.id)
		if away(err) {
			time.Sleep(min(pollState, s.c.config.Times.Beat))
			continue
		}
		if err != nil || e.State.over() {
			break
		}
		e.State = Cancelled
		if _, err = s.store.replace(ctx, s.id, e, revision); err == nil {
			s.nudge()
			break
		}
	}
	return nil, context.Canceled
}

// drain handles all messages that have arrived.
func (s *submission) drain(heard *ear) { heard.drain(func(m *nats.Msg) { s.take(m) }) }

// finish reads the report and returns its result.
func (s *submission) finish(ctx context.Context, e entry) (*unitask.Result, error) {
	s.begin(e)
	switch e.State {
	case Lost:
		err := &unitask.LostError{Reason: bounded.Text(e.Why, 500)}
		return &unitask.Result{Outcome: unitask.OutcomeLost, ExitCode: unitask.ExitHost, Error: err.Error(),
			MemoryMB: s.run.Request.MemoryMB}, err
	case Cancelled:
		return &unitask.Result{Outcome: unitask.OutcomeCancelled, ExitCode: unitask.ExitCancelled},
			fmt.Errorf("cancelled by another submitter: %w", context.Canceled)
	}
	if e.Report == nil {
		return nil, hostError(errors.New("the worker left no report"))
	}
	s.run.SaidBy(e.Worker)
	var r report
	err := s.patiently(ctx, func(ctx context.Context) (err error) {
		r, err = readReport(ctx, s.store, *e.Report)
		return err
	})
	if err != nil {
		return nil, hostError(err)
	}
	if r.Machine != nil {
		s.run.Machine(r.Machine)
	}
	if r.Left.Size > 0 {
		left, err := s.store.spooled(ctx, s.c.config.Times, r.Left, maxLeft, "")
		if err != nil {
			return nil, hostError(err)
		}
		defer left.Close()
		if err := unpackLeft(ctx, left, s.run, map[string]io.Writer{nameStdout: s.run.Stdout, nameStderr: s.run.Stderr},
			s.have); err != nil {
			return nil, hostError(err)
		}
	}
	return r.outcome()
}
