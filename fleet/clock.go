package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// clock is the submitter's, of how long workers have had a run. What they say of themselves does not stop it.
type clock struct {
	limit   time.Duration // of one attempt; all attempts have maxLosses times that
	attempt int
	since   time.Time     // when the run was seen to be claimed; zero is that it is not
	spent   time.Duration // by attempts before
}

const (
	transferSpeed = 2 << 20          // bytes a second, at least, of what a run brings and leaves
	packagesTime  = 75 * time.Minute // beside the run, to install packages at the worker, and to compile them
)

// limit returns how long one worker may have a run: its time limit, the start of a machine, what goes there and comes
// back, and a lease.
func limit(run *unitask.FleetRun, times Times) time.Duration {
	req := run.Request
	all := req.Timeout
	if all <= 0 {
		all = policy.DefaultTimeout
	}
	if req.KernelRetry {
		all *= 2
	}
	bytes := 2*req.OutputBytes + max(req.MaxArtifacts, 0) + int64(len(req.Code))
	if run.Inputs != nil {
		bytes += run.Inputs.Bytes()
	}
	switch {
	case run.Image != nil:
		bytes += 2 * run.Image.Size // it is unpacked, too
	case req.Image != "" && !slices.Contains(policy.ImageNames, req.Image): // the worker pulls it
		all += transferTime
	}
	if len(req.Packages) > 0 {
		all += packagesTime
	}
	return all + times.Start + time.Duration(bytes/transferSpeed)*time.Second + times.Lease
}

// see notes a run's entry.
func (c *clock) see(e entry, now time.Time) {
	if !c.since.IsZero() && (e.State != Claimed || e.Attempt != c.attempt) {
		c.spent += now.Sub(c.since)
		c.since = time.Time{}
	}
	if e.State == Claimed && c.since.IsZero() {
		c.since, c.attempt = now, e.Attempt
	}
}

// late is by how much the workers' time is over; at most 0 is that it is not.
func (c *clock) late(now time.Time) time.Duration {
	if c.since.IsZero() {
		return 0
	}
	took := now.Sub(c.since)
	return max(took-c.limit, c.spent+took-maxLosses*c.limit)
}

// overrun ends a run whose workers' time is over as lost. Where the entry can't be replaced, since NATS is away or a
// worker writes it again and again, the submitter goes without that a lease later. nil is that it is to be looked at
// again.
func (s *submission) overrun(ctx context.Context, e entry, revision uint64, late time.Duration) *entry {
	e.State = Lost
	e.Why = fmt.Sprintf("worker %s has it for longer than its time limit, its transfers and a lease take (%v)", e.Worker,
		s.clock.limit.Round(time.Second))
	if _, err := s.store.replace(ctx, s.id, e, revision); err != nil && late <= s.c.config.Times.Lease {
		return nil
	}
	s.nudge()
	return &e
}
