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

// Bounds of the metrics' server, which anybody may connect to who can reach its address.
const (
	metricsTime    = 5 * time.Second // for a request, and for its answer
	metricsHeaders = 16 << 10        // bytes
	metricsAtOnce  = 4               // requests; more are told 503
	metricsConns   = 64              // connections; beyond that one of them ends for each that comes
)

// leastToken is the least length, in bytes, of a token.
const leastToken = 16

// readMetricsToken reads what readers of the metrics show, "" for a server on a loopback address that takes everybody.
// They name all tenants of the worker, so on another address nobody reads them without.
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
	return "", fmt.Errorf("--metrics-token %s: has no token of %d characters or more: openssl rand -hex 32 makes one",
		file, leastToken)
}

func isLoopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

// holding lets only requests with the token through; "" is everybody on this host, but no browser that a name which
// changes its address has led here.
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

// metricsHandler answers /metrics for Prometheus, to who has the token, and /healthz to everybody, which is 200 while
// the worker can take runs.
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

// serveMetrics serves them at an address until it is told to stop. It returns the address.
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

// fewConns is a listener with metricsConns connections at most. For one more any of them ends: who has just come, and
// asks at once, is most probably not it, however many come. So nobody takes the worker's descriptors, or keeps others
// out.
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
