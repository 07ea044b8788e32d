package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// Bounds of the metrics' server, which anybody may ask who can reach its address.
const (
	metricsTime    = 5 * time.Second // for a request, and for its answer
	metricsHeaders = 16 << 10        // bytes
	metricsAtOnce  = 4               // requests; more are told 503
)

// metricsHandler answers /metrics for Prometheus, and /healthz, which is 200 while the worker is
// connected for each of its tenants.
func metricsHandler(w *fleet.Worker, pool func() unitask.PoolStats) http.Handler {
	registry := prometheus.NewRegistry()
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "unitask_fleet_clones_ready", Help: "Machines that wait for code on this worker."},
		func() float64 { return float64(pool().Idle) })
	registry.MustRegister(w.Metrics(), ready, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: metricsAtOnce, Timeout: metricsTime}))
	mux.HandleFunc("GET /healthz", func(out http.ResponseWriter, _ *http.Request) {
		if !w.Connected() {
			out.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(out, "not connected to NATS for all tenants\n")
			return
		}
		_, _ = io.WriteString(out, "ok\n")
	})
	return mux
}

// serveMetrics serves them at an address until it is told to stop. It returns the address.
func serveMetrics(ctx context.Context, address string, handler http.Handler) (net.Addr, func(), error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, usage(fmt.Errorf("--metrics %s: %w: use HOST:PORT with a port that is free", address, err))
	}
	server := &http.Server{Handler: handler, ReadTimeout: metricsTime, WriteTimeout: 2 * metricsTime, IdleTimeout: time.Minute, MaxHeaderBytes: metricsHeaders}
	over := make(chan struct{})
	go func() { defer close(over); _ = server.Serve(l) }()
	return l.Addr(), func() { _ = server.Close(); <-over }, nil
}
