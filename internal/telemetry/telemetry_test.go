package telemetry

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/collector"
)

func TestWanted(t *testing.T) {
	for _, c := range []struct {
		env             string
		traces, metrics bool
		wrong           string
	}{
		{"", false, false, ""},
		{"OTEL_SERVICE_NAME=x OTEL_TRACES_SAMPLER=always_on", false, false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318", true, true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=https://collector.example/otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, true,
			""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:4318/v1/traces", true, false, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_METRICS_EXPORTER=none", true, false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_SDK_DISABLED=TRUE", false, false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_TRACES_EXPORTER=console", false, false,
			"OTEL_TRACES_EXPORTER is \"console\": use otlp or none"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, false,
			"OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\": use http/protobuf"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=127.0.0.1:4318", false, false, "OTEL_EXPORTER_OTLP_ENDPOINT is no URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318", false, false, "OTEL_EXPORTER_OTLP_ENDPOINT is no URL"},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=file:///etc/passwd", false, false,
			"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is no URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=ftp://user:hunter2@host/", false, false, "is no URL"},
	} {
		env := map[string]string{}
		for _, pair := range strings.Fields(c.env) {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
		traces, metrics, err := wanted(func(name string) string { return env[name] })
		if traces != c.traces || metrics != c.metrics || (err != nil) != (c.wrong != "") ||
			err != nil && (!strings.Contains(err.Error(), c.wrong) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: traces %v, metrics %v, %v", c.env, traces, metrics, err)
		}
	}
}

// unsaid is for tests that check received data: leftovers of another test's collector may fail late.
func unsaid(string) {}

// Sent data reaches the collector, with the resource from the environment.
func TestStart(t *testing.T) {
	c := collector.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=abc")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	t.Setenv("OTEL_SERVICE_NAME", "tasks")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
	t.Setenv("TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	stop := Start(t.Context(), "1.2.3", unsaid)
	ctx, span := otel.Tracer("t").Start(FromEnvironment(t.Context()), "outer")
	_, inner := otel.Tracer("t").Start(ctx, "inner")
	inner.End()
	span.End()
	counter, err := otel.Meter("t").Int64Counter("things")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(ctx, 3)
	stop()
	got := c.Text()
	for _, want := range []string{
		"resource service.name=tasks\n", "resource has deployment.environment\n", "resource has service.version\n",
		"resource has service.instance.id\n",
		"span outer of 00f067aa0ba902b7 in 4bf92f3577b34da6a3ce929d0e0e4736:",
		"span inner of outer in 4bf92f3577b34da6a3ce929d0e0e4736:", "metric things = 3\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, h := range c.Headers() {
		if h.Get("Api-Key") != "abc" {
			t.Errorf("%v", h)
		}
	}
}

// The sampler in the environment decides.
func TestSampler(t *testing.T) {
	for sampler, want := range map[string]int{"always_on": 1, "always_off": 0, "parentbased_always_off": 0} {
		c := collector.New(t)
		t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", c.URL+"/v1/traces")
		t.Setenv("OTEL_TRACES_SAMPLER", sampler)
		stop := Start(t.Context(), "1", unsaid)
		_, span := otel.Tracer("t").Start(t.Context(), "one")
		span.End()
		stop()
		if n := len(c.Spans()); n != want || len(c.Metrics()) > 0 {
			t.Errorf("%s: %d spans", sampler, n)
		}
	}
}

// Traces from the environment are continued only if they are valid.
func TestAttackTraceparent(t *testing.T) {
	c := collector.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", c.URL+"/v1/traces")
	stop := Start(t.Context(), "1", unsaid)
	defer stop()
	for _, parent := range []string{"", "00", "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
		"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
		strings.Repeat("0", 100_000), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nx: y"} {
		t.Setenv("TRACEPARENT", parent)
		t.Setenv("TRACESTATE", strings.Repeat("a=b,", 10_000))
		got := "a trace of its own"
		if at := trace.SpanContextFromContext(FromEnvironment(t.Context())); at.IsValid() {
			got = at.TraceID().String()
		}
		attack.Check(t, fmt.Sprintf("a caller's trace %.60q", parent), "a trace of its own", got)
	}
	t.Setenv("TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	at := trace.SpanContextFromContext(FromEnvironment(t.Context()))
	attack.Check(t, "a caller's trace with 40 kB of state", "continued, without the state",
		map[bool]string{true: "continued, without the state"}[at.IsValid() && at.TraceState().Len() == 0])
}

// A collector with invalid behavior delays nobody, and causes few messages.
func TestAttackCollector(t *testing.T) {
	patience = 300 * time.Millisecond
	defer func() { patience = Patience }()
	none, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	none.Close()
	hang := func(r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	for name, handler := range map[string]http.HandlerFunc{
		"that nobody is": nil,
		"that hangs":     func(_ http.ResponseWriter, r *http.Request) { hang(r) },
		"that sends headers and hangs": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			hang(r)
		},
		"that answers 1 GiB": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.CopyN(w, endless('x'), 1<<30) },
		"that answers 500 with a page of control sequences": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			_, _ = io.CopyN(w, endless(0x1b), 1<<20)
		},
		"that says to try again in an hour": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(503)
		},
		"that redirects for ever": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/v1/traces", http.StatusTemporaryRedirect)
		},
		"that answers nonsense": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = io.WriteString(w, "\xff\xff\xff\xff\xff")
		},
	} {
		at := "http://" + none.Addr().String()
		if handler != nil {
			hs := httptest.NewServer(handler)
			defer hs.Close()
			defer hs.CloseClientConnections()
			at = hs.URL
		}
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", at)
		var said []string
		var mu sync.Mutex
		stop := Start(t.Context(), "1", func(what string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, what)
		})
		_, span := otel.Tracer("t").Start(t.Context(), "one")
		span.End()
		begin := time.Now()
		stop()
		took := time.Since(begin)
		mu.Lock()
		got := "one line, and the end"
		switch {
		case took > patience+5*time.Second:
			got = "waited for " + took.String()
		case len(said) != 1:
			got = fmt.Sprintf("%d lines", len(said))
		case len(said[0]) > maxTold+100:
			got = fmt.Sprintf("%d bytes said", len(said[0]))
		}
		mu.Unlock()
		attack.Check(t, "a collector "+name, "one line, and the end", got)
	}
}

type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}
