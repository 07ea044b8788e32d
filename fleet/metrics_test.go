package fleet_test

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/testwait"
)

// scraped is a worker's metrics as Prometheus would read them: values by the name and labels of a series.
func scraped(t *testing.T, w *fleet.Worker) map[string]string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.Metrics())
	out := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(out, httptest.NewRequest("GET", "/metrics", nil))
	if out.Code != 200 {
		t.Fatal(out.Body)
	}
	series := map[string]string{}
	for line := range strings.Lines(out.Body.String()) {
		if at := strings.LastIndexByte(line, ' '); at > 0 && line[0] != '#' {
			series[line[:at]] = strings.TrimSpace(line[at+1:])
		}
	}
	return series
}

// A worker's metrics follow the events, and the dashboard uses the metrics' names.
func TestMetrics(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	w := startWorker(t, quickly(workerConfig(ns.ClientURL(), 1)), script{})
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	labels := `{class="` + string(unitask.HostArch()) + `",tenant="default"}`
	exited := strings.Replace(labels, ",", `,outcome="exited",`, 1)
	until := func(want map[string]string) {
		t.Helper()
		var wrong string
		if !testwait.Holds(2*time.Minute, func() bool {
			series := scraped(t, w)
			wrong = ""
			for name, value := range want {
				if got := series["unitask_fleet_"+name]; got != value && (value != "some" || got == "" || got == "0") {
					wrong += " " + name + " is " + got + ", not " + value
				}
			}
			return wrong == ""
		}) {
			t.Fatal(wrong)
		}
	}
	until(map[string]string{"slots": "1", "draining": "0", "connected" + labels: "1", "running" + labels: "0",
		"queue_runs" + labels: "0", "queue_age_seconds" + labels: "0", "retried_total" + labels: "0",
		"lost_total" + labels: "0"})
	gate := filepath.Join(t.TempDir(), "gate")
	var submitted sync.WaitGroup
	defer submitted.Wait()
	for range 3 {
		submitted.Go(func() {
			if _, err := rt.Run(t.Context(), unitask.Request{Code: "wait " + gate}, unitask.IO{}); err != nil {
				t.Error(err)
			}
		})
	}
	until(map[string]string{"running" + labels: "1", "memory_used_bytes" + labels: "5.36870912e+08",
		"queue_runs" + labels: "2", "queue_delivered_runs" + labels: "1", "queue_age_seconds" + labels: "some"})
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	submitted.Wait()
	until(map[string]string{"running" + labels: "0", "queue_runs" + labels: "0", "queue_age_seconds" + labels: "0",
		"runs_total" + exited: "3", "wait_seconds_count" + labels: "3", "memory_used_bytes" + labels: "0"})

	compareDashboard(t, w)

	w.Drain()
	until(map[string]string{"draining": "1"})
	ns.Shutdown()
	until(map[string]string{"connected" + labels: "0"})
	if w.Connected() {
		t.Error("it says that it is connected")
	}
}

// compareDashboard checks that the dashboard uses all existing metrics, and only those.
func compareDashboard(t *testing.T, w *fleet.Worker) {
	t.Helper()
	names := map[string]bool{"unitask_fleet_clones_ready": true} // a metric of the command
	for series := range scraped(t, w) {
		name, _, _ := strings.Cut(series, "{")
		names[name] = true
	}
	text, err := os.ReadFile("../hack/deploy/grafana-fleet.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil || len(dashboard.Panels) == 0 {
		t.Fatal(err, len(dashboard.Panels))
	}
	asked := map[string]bool{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			found := regexp.MustCompile(`\bunitask_\w+`).FindAllString(target.Expr, -1)
			if len(found) == 0 {
				t.Errorf("%s asks for nothing: %s", p.Title, target.Expr)
			}
			for _, name := range found {
				if asked[name] = true; !names[name] {
					t.Errorf("%s asks for %s, which no worker has", p.Title, name)
				}
			}
		}
	}
	for name := range names {
		if base := strings.TrimSuffix(strings.TrimSuffix(name, "_count"), "_sum"); !asked[name] && !asked[base+"_bucket"] {
			t.Errorf("no panel shows %s", name)
		}
	}
}
