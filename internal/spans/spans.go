// Package spans makes the spans and metrics of runs, for the OpenTelemetry providers that a program has set. They
// contain no text of the request, of the code or of an error.
package spans

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/run"
)

// scope is the instrumentation scope of these spans and metrics.
const scope = "github.com/unitask/unitask"

// Meters makes a runtime's spans and metrics with the global providers. Without providers it does nothing.
type Meters struct {
	tracer   trace.Tracer
	runs     metric.Int64Counter
	active   metric.Int64UpDownCounter
	duration metric.Float64Histogram
	phases   metric.Float64Histogram
}

func New() *Meters {
	m, meter := &Meters{tracer: otel.Tracer(scope)}, otel.Meter(scope)
	seconds := metric.WithExplicitBucketBoundaries(.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 1800)
	var errs [4]error
	m.runs, errs[0] = meter.Int64Counter("unitask.runs", metric.WithUnit("{run}"),
		metric.WithDescription("Runs that have ended, by outcome."))
	m.active, errs[1] = meter.Int64UpDownCounter("unitask.runs.active", metric.WithUnit("{run}"),
		metric.WithDescription("Runs under way."))
	m.duration, errs[2] = meter.Float64Histogram("unitask.run.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of a run, from call to exit."), seconds)
	m.phases, errs[3] = meter.Float64Histogram("unitask.run.phase.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of a phase of a run."), seconds)
	if err := errors.Join(errs[:]...); err != nil {
		otel.Handle(err)
	}
	return m
}

// Run is a run under measurement.
type Run struct {
	*Meters
	begin time.Time
	span  trace.Span
	about []attribute.KeyValue // with few possible values, because metrics have them, too
}

// Begin begins the span of a run of a kind, in ctx's trace.
func (m *Meters) Begin(ctx context.Context, begin time.Time, via, kind string) (context.Context, *Run) {
	r := &Run{Meters: m, begin: begin, about: []attribute.KeyValue{attribute.String("unitask.kind", kind),
		attribute.String("unitask.via", via)}}
	ctx, r.span = m.tracer.Start(ctx, kind, trace.WithTimestamp(begin), trace.WithAttributes(r.about...))
	m.active.Add(ctx, 1, metric.WithAttributes(r.about...))
	return ctx, r
}

// End records how the run ended; a run without a result was refused.
func (r *Run) End(ctx context.Context, res *run.Result) {
	r.active.Add(ctx, -1, metric.WithAttributes(r.about...))
	outcome := "refused"
	if res != nil {
		outcome = string(res.Outcome)
		machine := "boot"
		switch {
		case res.Pooled:
			machine = "pool"
		case res.Cloned:
			machine = "clone"
		}
		r.about = append(r.about, attribute.String("unitask.kernel", string(res.Kernel)),
			attribute.String("unitask.accelerator", string(res.Accelerator)), attribute.String("unitask.machine", machine))
		r.span.SetAttributes(attribute.String("unitask.run.id", res.RunID), attribute.Int("process.exit.code", res.ExitCode),
			attribute.Int("unitask.memory_mb", res.MemoryMB),
			attribute.Bool("unitask.truncated", res.Truncated), attribute.Int("unitask.denials", len(res.Policy.Denials)))
	}
	r.about = append(r.about, attribute.String("unitask.outcome", outcome))
	r.span.SetAttributes(r.about...)
	if outcome != string(run.OutcomeExited) && outcome != string(run.OutcomeCancelled) {
		r.span.SetAttributes(attribute.String("error.type", outcome))
		r.span.SetStatus(codes.Error, outcome)
	}
	how := metric.WithAttributes(r.about...)
	r.runs.Add(ctx, 1, how)
	r.duration.Record(ctx, time.Since(r.begin).Seconds(), how)
	r.span.End()
}

// Phase records a part of a run as its own span.
func Phase[T any](ctx context.Context, m *Meters, name string, do func(context.Context) (T, error)) (T, error) {
	begin := time.Now()
	ctx, span := m.tracer.Start(ctx, name)
	defer span.End()
	res, err := do(ctx)
	about := []attribute.KeyValue{attribute.String("unitask.phase", name)}
	if err != nil {
		var failed failure.Failure
		kind := attribute.String("error.type", "failed")
		switch {
		case errors.Is(err, stopclock.ErrTimeout):
			kind = attribute.String("error.type", "timeout")
		case errors.Is(err, failure.ErrRetry):
			kind = attribute.String("error.type", "retry")
		case errors.As(err, &failed):
			kind = attribute.String("error.type", cmp.Or(failed.Op, "failed"))
		}
		span.SetStatus(codes.Error, kind.Value.AsString())
		span.SetAttributes(kind)
		about = append(about, kind)
	}
	m.phases.Record(ctx, time.Since(begin).Seconds(), metric.WithAttributes(about...))
	return res, err
}
