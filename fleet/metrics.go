package fleet

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/unitask/unitask"
)

// metrics are a worker's metrics for Prometheus. The queue's numbers are from the last Beat, so that reading them needs
// no NATS. Each tenant has its rows from the start.
type metrics struct {
	w       *Worker
	runs    *prometheus.CounterVec
	lost    *prometheus.CounterVec
	retried *prometheus.CounterVec
	wait    *prometheus.HistogramVec

	slots, running, memory, used, draining, connected, waiting, delivered, age *prometheus.Desc
}

func newMetrics(w *Worker) *metrics {
	tenant := []string{"class", "tenant"}
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("unitask_fleet_"+name, help, labels, nil)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "unitask_fleet_" + name, Help: help},
			append(tenant[:2:2], labels...))
	}
	m := &metrics{
		w: w,
		runs: counter("runs_total",
			"Runs that have ended on this worker, by how: "+
				"an outcome, refused, error, returned (to the queue, "+
				"by a worker that goes) or fenced (its submitter cancelled it, or another worker has it).", "outcome"),
		lost: counter("lost_total",
			"Runs that this worker found lost: their worker is gone, and they may not be made again."),
		retried: counter("retried_total", "Runs that this worker has made again, since their worker was lost."),
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "unitask_fleet_wait_seconds",
			Help:    "Time from a run's submission until this worker claimed it.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 1800}}, tenant),
		slots:     gauge("slots", "Runs at once that this worker takes."),
		running:   gauge("running", "Runs under way on this worker.", tenant...),
		memory:    gauge("memory_bytes", "Memory for machines on this worker."),
		used:      gauge("memory_used_bytes", "Memory of machines that are under way on this worker.", tenant...),
		draining:  gauge("draining", "1 if this worker takes nothing more on."),
		connected: gauge("connected", "1 if this worker is connected to the tenant's account.", tenant...),
		waiting:   gauge("queue_runs", "Runs that wait in the queue, on no worker yet.", tenant...),
		delivered: gauge("queue_delivered_runs", "Runs of the queue that are with a worker, of any host.", tenant...),
		age: gauge("queue_age_seconds", "For how long the oldest of those has waited that are on no worker.",
			tenant...),
	}
	for _, t := range w.config.Tenants {
		labels := []string{w.info.Arch, t.Name}
		m.runs.WithLabelValues(append(labels, string(unitask.OutcomeExited))...)
		m.lost.WithLabelValues(labels...)
		m.retried.WithLabelValues(labels...)
		m.wait.WithLabelValues(labels...)
	}
	return m
}

// Metrics returns the worker's metrics for Prometheus, by class (the architecture) and tenant.
func (w *Worker) Metrics() prometheus.Collector { return w.metrics }

// Connected reports whether the worker is connected for each of its tenants.
func (w *Worker) Connected() bool {
	for _, l := range w.queues {
		if !l.nc.IsConnected() {
			return false
		}
	}
	return true
}

// Healthy returns why the worker accepts no runs now, or nil if it accepts them. For each tenant it must be connected,
// and JetStream must have stored a recent heartbeat. The error names no tenant.
func (w *Worker) Healthy() error {
	if w.draining() {
		return errors.New("the worker is going")
	}
	if !w.Connected() {
		return errors.New("not connected to NATS for all tenants")
	}
	for _, l := range w.queues {
		if time.Since(time.Unix(0, l.beaten.Load())) > 2*w.config.Times.Lease {
			return errors.New("JetStream does not answer for all tenants")
		}
	}
	if _, err := os.Stat(w.scratch.dir); err != nil {
		return errors.New("the folder for what runs bring is gone")
	}
	return nil
}

// Describe and Collect implement prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.runs, m.lost, m.retried, m.wait} {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.slots, m.running, m.memory, m.used, m.draining, m.connected, m.waiting,
		m.delivered, m.age} {
		ch <- d
	}
}

func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.runs, m.lost, m.retried, m.wait} {
		c.Collect(ch)
	}
	w, draining := m.w, m.w.draining()
	w.mu.Lock()
	defer w.mu.Unlock()
	put := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	put(m.slots, float64(w.info.Slots))
	put(m.memory, float64(w.info.MemoryMB)*(1<<20))
	put(m.draining, truth(draining))
	for _, l := range w.queues {
		labels := []string{w.info.Arch, l.tenant}
		put(m.running, float64(l.running), labels...)
		put(m.used, float64(l.usedMB)*(1<<20), labels...)
		put(m.connected, truth(l.nc.IsConnected()), labels...)
		put(m.waiting, float64(l.depth.waiting), labels...)
		put(m.delivered, float64(l.depth.delivered), labels...)
		var age time.Duration
		if !l.depth.oldest.IsZero() {
			age = max(0, time.Since(l.depth.oldest))
		}
		put(m.age, age.Seconds(), labels...)
	}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// depth counts the messages in a tenant's part of the queue.
type depth struct {
	waiting   uint64    // on no worker
	delivered int       // to a worker
	oldest    time.Time // start of the longest wait for a worker; zero if none waits
}

// measure reads the queue's depth.
func (l *tenantQueue) measure(ctx context.Context) error {
	timed, cancel := context.WithTimeout(ctx, l.w.config.Times.Lease)
	defer cancel()
	var d depth
	for _, queue := range l.queues {
		info, err := queue.Info(timed)
		if err != nil {
			return err
		}
		d.waiting += info.NumPending
		d.delivered += info.NumAckPending
		if info.NumPending == 0 {
			continue
		}
		stream, err := l.js.Stream(timed, queueStream)
		if err != nil {
			return err
		}
		first, err := stream.GetMsg(timed, info.Delivered.Stream+1, jetstream.WithGetMsgSubject(info.Config.FilterSubject))
		switch {
		case err == nil && (d.oldest.IsZero() || first.Time.Before(d.oldest)):
			d.oldest = first.Time
		case err != nil && !errors.Is(err, jetstream.ErrMsgNotFound): // taken meanwhile
			return err
		}
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.depth = d
	return nil
}

// claimed records how long a run has waited, by the queue's clock.
func (m *metrics) claimed(l *tenantQueue, msg jetstream.Msg) {
	if meta, err := msg.Metadata(); err == nil {
		m.wait.WithLabelValues(m.w.info.Arch, l.tenant).Observe(max(0, time.Since(meta.Timestamp)).Seconds())
	}
}

func (m *metrics) ended(l *tenantQueue, how string) {
	m.runs.WithLabelValues(m.w.info.Arch, l.tenant, how).Inc()
}
