package mcp

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/unitask/unitask"
)

// metrics are the values of /metrics, for Prometheus.
type metrics struct {
	registry *prometheus.Registry
	runs     *prometheus.CounterVec
	start    *prometheus.HistogramVec
	wait     prometheus.Histogram
	queued   prometheus.Gauge
	running  prometheus.Gauge
	busy     prometheus.Counter
	bytes    *prometheus.CounterVec
	denials  *prometheus.CounterVec
}

func newMetrics() *metrics {
	seconds := []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "unitask_runs_total",
			Help: "Runs that have ended, by outcome."}, []string{"outcome"}),
		start: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "unitask_run_start_seconds",
			Help: "Time until the code began, without waiting for a slot, by where the machine came from.", Buckets: seconds},
			[]string{"machine"}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "unitask_queue_wait_seconds",
			Help: "Time that calls waited for a slot.", Buckets: seconds}),
		queued:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "unitask_queue_calls", Help: "Calls that wait for a slot."}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "unitask_running", Help: "Runs under way."}),
		busy: prometheus.NewCounter(prometheus.CounterOpts{Name: "unitask_refused_busy_total",
			Help: "Calls that were refused for want of room."}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "unitask_output_bytes_total",
			Help: "Bytes that the code printed and that were kept, and of artifacts."}, []string{"stream"}),
		denials: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "unitask_denials_total",
			Help: "What was asked for and not given, by field."}, []string{"field"}),
	}
	m.registry.MustRegister(m.runs, m.start, m.wait, m.queued, m.running, m.busy, m.bytes, m.denials,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) waiting(waiting, running int) {
	m.queued.Set(float64(waiting))
	m.running.Set(float64(running))
}

func (m *metrics) refused(err error) {
	if errors.Is(err, errBusy) {
		m.busy.Inc()
	}
}

func (m *metrics) ran(res *unitask.Result, waited time.Duration, printed *streams) {
	m.runs.WithLabelValues(string(res.Outcome)).Inc()
	m.wait.Observe(waited.Seconds())
	from := "boot"
	switch {
	case res.Pooled:
		from = "pool"
	case res.Cloned:
		from = "clone"
	}
	m.start.WithLabelValues(from).Observe((res.Duration.Boot + res.Duration.Connect).Seconds())
	m.bytes.WithLabelValues("stdout").Add(float64(printed.stdout.total))
	m.bytes.WithLabelValues("stderr").Add(float64(printed.stderr.total))
	for _, a := range res.Artifacts {
		m.bytes.WithLabelValues("artifacts").Add(float64(a.Size))
	}
	for _, d := range res.Policy.Denials {
		m.denials.WithLabelValues(d.Field).Inc()
	}
}
