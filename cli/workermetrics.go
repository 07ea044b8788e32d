package cli

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// Limits of the metrics server: anybody who can reach its address may connect.
const (
	metricsTime    = 5 * time.Second // for a request, and for its answer
	metricsHeaders = 16 << 10        // bytes
	metricsAtOnce  = 4               // requests; more get a 503
	metricsConns   = 64              // connections; beyond that, each new one closes another
)

// leastToken is the minimum length, in bytes, of a token.
const leastToken = 16

// readMetricsToken reads the token for readers of the metrics; it is "" for a server on a loopback address
// without a token. The metrics name all tenants of the worker, so any other address requires a token.
func readMetricsToken(address, file string) (string, error) {
	if file == "" {
		if host, _, err := net.SplitHostPort(address); err == nil && !isLoopback(host) {
			return "", fmt.Errorf("--metrics %s: others can reach it: give --metrics-token FILE, or listen on 127.0.0.1",
				address)
		}
		return "", nil
	}
	text, err := readSecretFile("--metrics-token", file)
	if err != nil {
		return "", err
	}
	if token := strings.TrimSpace(string(text)); len(token) >= leastToken && !strings.ContainsAny(token, " \t\r\n") {
		return token, nil
	}
	return "", fmt.Errorf("--metrics-token %s: has no token of %s or more: openssl rand -hex 32 makes one",
		file, count(leastToken, "character"))
}

func isLoopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

// holding admits only requests with the token. "" admits everybody on this host, except a browser that was led
// here by a name that changes its address.
func holding(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + token))
	return http.HandlerFunc(func(out http.ResponseWriter, req *http.Request) {
		if host, _, err := net.SplitHostPort(req.Host); token == "" && !isLoopback(req.Host) &&
			(err != nil || !isLoopback(host)) {
			http.Error(out, "the metrics are at a loopback address: ask for them by that", http.StatusForbidden)
			return
		}
		headers := req.Header["Authorization"]
		got := sha256.Sum256([]byte(strings.Join(headers, "\n")))
		if token != "" && (len(headers) != 1 || subtle.ConstantTimeCompare(got[:], want[:]) == 0) {
			out.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(out, "give the token of --metrics-token", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(out, req)
	})
}

// metricsHandler serves /metrics for Prometheus, to readers with the token, and /healthz to everybody: 200 while
// the worker can accept runs.
func metricsHandler(w *fleet.Worker, pool func() unitask.PoolStats, token string) http.Handler {
	registry := prometheus.NewRegistry()
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "unitask_fleet_clones_ready",
		Help: "Machines that wait for code on this worker."},
		func() float64 { return float64(pool().Idle) })
	registry.MustRegister(w.Metrics(), ready, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	numbers := promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: metricsAtOnce,
		Timeout: metricsTime})
	mux.Handle("GET /metrics", holding(token, numbers))
	mux.HandleFunc("GET /healthz", func(out http.ResponseWriter, _ *http.Request) {
		if err := w.Healthy(); err != nil {
			out.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(out, err.Error()+"\n")
			return
		}
		_, _ = io.WriteString(out, "ok\n")
	})
	return mux
}

// serveMetrics serves the metrics at an address until it is stopped. It returns the address.
func serveMetrics(ctx context.Context, address string, handler http.Handler) (net.Addr, func(), error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, usage(fmt.Errorf("--metrics %s: %w: use HOST:PORT with a port that is free", address, err))
	}
	server := &http.Server{Handler: handler, ReadTimeout: metricsTime, WriteTimeout: 2 * metricsTime,
		IdleTimeout: time.Minute, MaxHeaderBytes: metricsHeaders}
	over := make(chan struct{})
	go func() { defer close(over); _ = server.Serve(&fewConns{Listener: l, open: map[*fewConn]bool{}}) }()
	return l.Addr(), func() { _ = server.Close(); <-over }, nil
}

// fewConns is a listener with at most metricsConns connections. For each further one a random connection is closed. A
// client that has just connected and sends its request at once probably survives, however many connect. So nobody can
// use up the worker's descriptors or keep others out.
type fewConns struct {
	net.Listener

	mu   sync.Mutex
	open map[*fewConn]bool
}

type fewConn struct {
	net.Conn
	of *fewConns
}

func (f *fewConns) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for one := range f.open {
		if len(f.open) < metricsConns {
			break
		}
		delete(f.open, one)
		_ = one.Conn.Close()
	}
	one := &fewConn{c, f}
	f.open[one] = true
	return one, nil
}

func (c *fewConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
