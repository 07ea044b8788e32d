package mcp

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/doctor"
)

// doctorFresh is how long a report of the doctor is reused. Making it boots a machine on every accelerator, so callers
// get the last report instead.
const doctorFresh = 30 * time.Second

// checkups are the doctor's reports: one is made at a time, for everybody who asks.
type checkups struct {
	check func(context.Context) *doctor.Report

	mu     sync.Mutex
	latest *checkup
}

// checkup is a report, valid once made is closed.
type checkup struct {
	made   chan struct{}
	at     time.Time // when it was made
	report *doctor.Report
	err    error
}

// report returns a fresh report, and waits for one that is being made.
func (s *Server) report(ctx context.Context, caller unitask.Caller) (*doctor.Report, error) {
	c, err := s.latestCheckup(caller)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.made:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c.err != nil {
		return nil, c.err
	}
	own := *c.report
	own.Checks, own.Accelerators = slices.Clone(own.Checks), slices.Clone(own.Accelerators)
	return &own, nil
}

// latestCheckup starts a new report if there is none, or an old or failed one.
func (s *Server) latestCheckup(caller unitask.Caller) (*checkup, error) {
	s.checkups.mu.Lock()
	defer s.checkups.mu.Unlock()
	if c := s.checkups.latest; c != nil {
		select {
		case <-c.made:
			if c.err == nil && time.Since(c.at) < doctorFresh {
				return c, nil
			}
		default:
			return c, nil
		}
	}
	done, err := s.begin()
	if err != nil {
		return nil, err
	}
	c := &checkup{made: make(chan struct{})}
	s.checkups.latest = c
	go func() {
		defer done()
		defer close(c.made)
		leave, err := s.queue.enter(s.ctx, caller.Name, func(int) {})
		if err != nil {
			s.metrics.refused(err)
			c.err = err
			return
		}
		defer leave()
		c.report = s.checkups.check(s.ctx)
		c.at = time.Now()
		if s.opts.Policy != nil {
			c.report.Ceiling(s.opts.Policy, nil)
		}
		if s.ctx.Err() != nil { // it describes a server that is closing
			c.err = context.Cause(s.ctx)
		}
	}()
	return c, nil
}
