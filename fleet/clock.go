package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// clock measures, at the submitter, how long workers have had a run. No message of a worker stops it.
type clock struct {
	limit   time.Duration // of one attempt; all attempts have maxLosses times that
	attempt int
	since   time.Time     // when the claim of the run was seen; zero if there is none
	spent   time.Duration // on earlier attempts
}

const (
	transferSpeed = 2 << 20          // bytes a second, at least, for a run's files and results
	packagesTime  = 75 * time.Minute // beside the run, to install packages at the worker, and to compile them
)

// limit returns how long one worker may have a run. It is the sum of the run's time limit, the start of a machine, the
// transfers and a lease.
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

// see updates the clock with a run's entry.
func (c *clock) see(e entry, now time.Time) {
	if !c.since.IsZero() && (e.State != Claimed || e.Attempt != c.attempt) {
		c.spent += now.Sub(c.since)
		c.since = time.Time{}
	}
	if e.State == Claimed && c.since.IsZero() {
		c.since, c.attempt = now, e.Attempt
	}
}

// late returns the time by which the workers exceed their limit; at most 0 if they don't.
func (c *clock) late(now time.Time) time.Duration {
	if c.since.IsZero() {
		return 0
	}
	took := now.Sub(c.since)
	return max(took-c.limit, c.spent+took-maxLosses*c.limit)
}

// overrun ends a run as lost when the workers' time is over. If the entry can't be replaced, because NATS is
// unavailable or a worker keeps writing it, the submitter gives up a lease later. nil means that the entry must be read
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
