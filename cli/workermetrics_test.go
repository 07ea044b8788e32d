package cli

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/fleet/embedded"
	"github.com/unitask/unitask/internal/testwait"
)

// fetched returns the status and the text of a response.
func fetched(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// A worker serves its metrics at the configured address, and its health follows NATS.
func TestWorkerMetrics(t *testing.T) {
	server, err := embedded.Start(t.Context(), t.TempDir(), embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	w, err := fleet.NewWorker(t.Context(), fleet.WorkerConfig{Config: server.Config(),
		Info: fleet.WorkerInfo{Slots: 2, MemoryMB: 1024, Arch: "amd64"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	at, stop, err := serveMetrics(t.Context(), "127.0.0.1:0",
		metricsHandler(w, func() unitask.PoolStats { return unitask.PoolStats{Idle: 3} }, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	get := func(method, path string) (int, string) { return fetched(t, method, "http://"+at.String()+path) }
	code, text := get("GET", "/metrics")
	for _, line := range []string{"unitask_fleet_slots 2", "unitask_fleet_clones_ready 3",
		`unitask_fleet_connected{class="amd64",tenant="default"} 1`, "process_open_fds "} {
		if code != 200 || !strings.Contains(text, "\n"+line) {
			t.Errorf("%d, without %s: %s", code, line, text)
		}
	}
	for path, want := range map[string]int{"/healthz": 200, "/": 404, "/debug/pprof/": 404, "/metrics/x": 404} {
		if code, text := get("GET", path); code != want {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if code, _ := get("POST", "/metrics"); code != 405 {
		t.Errorf("POST: %d", code)
	}
	for _, bad := range []string{"nowhere", "127.0.0.1:99999", at.String()} {
		if _, _, err := serveMetrics(t.Context(), bad, nil); err == nil || !strings.Contains(err.Error(), "--metrics "+bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}

	// A silent client, or one with an endless request, is disconnected.
	slow, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err := slow.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(slow, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: "+
		strings.Repeat("x", 2*metricsHeaders)); err != nil {
		t.Fatal(err)
	}
	if answer, _ := io.ReadAll(slow); !strings.Contains(string(answer), " 431 ") {
		t.Errorf("%.100q", answer)
	}

	server.Close()
	if !testwait.Holds(time.Minute, func() bool {
		code, text = get("GET", "/healthz")
		return code == 503
	}) {
		t.Fatalf("healthy without NATS: %d %s", code, text)
	}
	stop()
	if _, err := net.Dial("tcp", at.String()); err == nil {
		t.Error("it still listens")
	}
}
