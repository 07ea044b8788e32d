package cli

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/fleet/embedded"
	"github.com/unitask/unitask/internal/attack"
)

// A worker's metrics name its tenants, so reading them needs the token. Its health contains only the status.
func TestAttackWorkerMetrics(t *testing.T) {
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
	const token = "the-token-of-prometheus"
	handler := metricsHandler(w, func() unitask.PoolStats { return unitask.PoolStats{} }, token)
	ask := func(path string, headers ...string) string {
		req := httptest.NewRequest("GET", path, nil)
		req.Header["Authorization"] = headers
		out := httptest.NewRecorder()
		handler.ServeHTTP(out, req)
		return fmt.Sprint(out.Code, " ", strings.Contains(out.Body.String(), fleet.DefaultTenant))
	}
	for name, row := range map[string]struct {
		headers []string
		want    string
	}{
		"no token":         {nil, "401 false"},
		"an empty one":     {[]string{"Bearer "}, "401 false"},
		"another one":      {[]string{"Bearer the-token-of-prometheuS"}, "401 false"},
		"a part of it":     {[]string{"Bearer the-token"}, "401 false"},
		"two headers":      {[]string{"Bearer " + token, "Bearer " + token}, "401 false"},
		"another scheme":   {[]string{"Basic " + token}, "401 false"},
		"the token itself": {[]string{"Bearer " + token}, "200 true"},
	} {
		attack.Check(t, "a worker's metrics are read with "+name, row.want, ask("/metrics", row.headers...))
	}
	attack.Check(t, "a worker's health is asked for without a token", "200 false", ask("/healthz"))
	w.Drain()
	attack.Check(t, "the health of a worker that is going", "503 false", ask("/healthz"))
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(name, []byte(text), mode), os.Chmod(name, mode)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for name, row := range map[string]struct{ address, file, want string }{
		"every address":        {":9464", "", "others can reach it"},
		"another address":      {"192.0.2.1:9464", "", "others can reach it"},
		"a name":               {"worker.example:9464", "", "others can reach it"},
		"a token others read":  {":9464", file("open", token, 0o644), "others can read it"},
		"a token that is none": {":9464", file("short", "x", 0o600), "has no token"},
		"two tokens":           {":9464", file("two", token+" "+token, 0o600), "has no token"},
		"loopback":             {"127.0.0.1:9464", "", ""},
		"a name of loopback":   {"localhost:9464", "", ""},
		"loopback of IPv6":     {"[::1]:9464", "", ""},
		"a token":              {":9464", file("token", token+"\n", 0o600), ""},
	} {
		got := ""
		if _, err := readMetricsToken(row.address, row.file); err != nil {
			if got = err.Error(); strings.Contains(got, row.want) && row.want != "" {
				got = row.want
			}
		}
		attack.Check(t, "a worker's metrics are served at "+name, row.want, got)
	}
}

// A web page in the host's browser can't read the metrics, even if its name starts to resolve to loopback.
func TestAttackMetricsRebound(t *testing.T) {
	served := holding("", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{"127.0.0.1:9464": 200, "localhost:9464": 200, "[::1]:9464": 200,
		"127.0.0.1":         200,
		"evil.example:9464": 403, "evil.example": 403, "127.0.0.1.evil.example:9464": 403, "localhost.evil.example": 403,
		"": 403, "192.0.2.1:9464": 403} {
		req := httptest.NewRequest("GET", "/metrics", nil)
		req.Host = host
		out := httptest.NewRecorder()
		served.ServeHTTP(out, req)
		attack.Check(t, "a worker's metrics on loopback are asked for by the name "+host, fmt.Sprint(want),
			fmt.Sprint(out.Code))
	}
}

// Strangers can hold only few of a worker's descriptors, and its health stays available.
func TestAttackMetricsConnections(t *testing.T) {
	at, stop, err := serveMetrics(t.Context(), "127.0.0.1:0",
		http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { fmt.Fprint(out, "ok") }))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	const many = 3 * metricsConns
	ended := make(chan bool, many)
	for range many {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() {
			_, _ = c.Read(make([]byte, 1))
			ended <- true
		}()
	}
	for range many - metricsConns { // each of them has been accepted
		select {
		case <-ended:
		case <-time.After(metricsTime / 2):
			t.Fatal("connections of strangers stay")
		}
	}
	res, err := http.Get("http://" + at.String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	attack.Check(t, "a worker's health, beside strangers with many connections", "200", fmt.Sprint(res.StatusCode))
}
