package mcp

import (
	"context"
	"net/http"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/record"
)

// What another API at the server's address uses of this server's memory, and of its records.

// Lease begins a caller's request, whose memory counts against the server's budget until release. Body and Draw reserve
// it, with the returned context.
func (s *Server) Lease(ctx context.Context, caller unitask.Caller) (leased context.Context, release func()) {
	l := &lease{budget: s.budget, caller: caller.Name}
	return withLease(ctx, l), l.close
}

// Body reads the body of a request with a leased context: one JSON value of at most 16 MiB, or nothing. The error is a
// *BodyError or a *unitask.BusyError.
func (s *Server) Body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := s.takeBody(w, r, leaseOf(r.Context()), func([]byte) error { return nil })
	return body, busy(err)
}

// Decoded returns the part of a leased context's memory that only the decoding of its body needs.
func (s *Server) Decoded(ctx context.Context) { leaseOf(ctx).decoded() }

// Draw reserves the memory of an answer with that many bytes of JSON. The error is a *unitask.BusyError.
func (s *Server) Draw(ctx context.Context, bytes int64) error {
	return busy(leaseOf(ctx).draw(ctx, bytes, budgetPatience))
}

// Record returns the record of a run that a caller may see, by its complete id. The error is record.ErrNotFound for any
// other run. It counts as a reading.
func (s *Server) Record(ctx context.Context, caller unitask.Caller, id string) (*record.Record, error) {
	leave, err := s.look(ctx, caller)
	if err != nil {
		return nil, busy(err)
	}
	defer leave()
	rec, err := s.rt.Runs().Get(id)
	if err != nil {
		return nil, err
	}
	if rec.ID != id || !sees(caller)(rec.Owner, rec.Via) {
		return nil, record.ErrNotFound
	}
	return rec, nil
}

// Runs lists a caller's runs, the newest first: at most limit with a status ("" is any) and an id before another one.
// next is the before of the next page, "" if there is none.
func (s *Server) Runs(ctx context.Context, caller unitask.Caller, status, before string, limit int) (
	list []history.Summary, next string, err error) {
	leave, err := s.look(ctx, caller)
	if err != nil {
		return nil, "", busy(err)
	}
	defer leave()
	of := own(caller)
	of.Status, of.Limit, of.Before = status, limit, before
	list, next, err = s.rt.History().Page(of)
	for i := range list {
		if remote(caller) {
			list[i].Error = s.hider.all(list[i].Error)
		}
	}
	return list, next, err
}

// Doctor returns the doctor's report for a caller. It may be half a minute old.
func (s *Server) Doctor(ctx context.Context, caller unitask.Caller) (*doctor.Report, error) {
	report, err := s.report(ctx, caller)
	if err == nil && remote(caller) {
		s.hider.report(report)
	}
	return report, busy(err)
}

// Ran counts and logs a run of another API, and tells those who follow it that it has ended. waited is its time in the
// queue; stdout and stderr are the bytes that it printed.
func (s *Server) Ran(caller unitask.Caller, res *unitask.Result, waited time.Duration, stdout, stderr int64) {
	s.updated(caller, res.RunID)
	s.metrics.ran(res, waited, &streams{stdout: stream{total: stdout}, stderr: stream{total: stderr}})
	s.opts.Log.Info("run", "id", res.RunID, "caller", caller.Name, "outcome", res.Outcome, "exit", res.ExitCode, "ms",
		res.Duration.Total.Milliseconds(), "waited", waited.Milliseconds(), "denials", len(res.Policy.Denials))
}

// Questions returns the open questions of a caller's runs and sessions.
func (s *Server) Questions(ctx context.Context, caller unitask.Caller) (list []unitask.Question, err error) {
	leave, err := s.look(ctx, caller)
	if err != nil {
		return nil, busy(err)
	}
	defer leave()
	all, err := s.rt.Approvals().Questions(ctx)
	for _, q := range all {
		if rec, err := s.rt.Runs().Get(q.RunID); err == nil && sees(caller)(rec.Owner, rec.Via) {
			list = append(list, q)
		}
	}
	return list, err
}

// Event logs an event of a run of another API. Calls that wait for the same image learn of it, too.
func (s *Server) Event(e unitask.Event) { s.opts.Progress.Event(e) }
