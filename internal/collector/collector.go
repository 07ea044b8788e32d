// Package collector receives OTLP over HTTP in tests. It decodes requests with OpenTelemetry's own definitions, and
// keeps them.
package collector

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	metricscol "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracecol "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector is a receiver that listens on loopback until its test ends.
type Collector struct {
	URL string

	mu       sync.Mutex
	raw      bytes.Buffer
	headers  []http.Header
	resource map[string]string
	spans    []*trace.Span
	metrics  []*metrics.Metric
	wrong    []error
}

// New starts a Collector.
func New(t testing.TB) *Collector {
	c := &Collector{resource: map[string]string{}}
	hs := httptest.NewServer(c)
	t.Cleanup(func() {
		hs.Close()
		for _, err := range c.wrong {
			t.Error(err)
		}
	})
	c.URL = hs.URL
	return c
}

func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		plain, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = plain
	}
	text, err := io.ReadAll(body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = append(c.headers, r.Header)
	c.raw.Write(text)
	if err == nil {
		err = c.take(r, text)
	}
	if err != nil {
		c.wrong = append(c.wrong, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, err))
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (c *Collector) take(r *http.Request, text []byte) error {
	if kind := r.Header.Get("Content-Type"); r.Method != http.MethodPost || kind != "application/x-protobuf" {
		return fmt.Errorf("of type %q", kind)
	}
	switch r.URL.Path {
	case "/v1/traces":
		var req tracecol.ExportTraceServiceRequest
		if err := proto.Unmarshal(text, &req); err != nil {
			return err
		}
		for _, rs := range req.ResourceSpans {
			c.about(rs.Resource.GetAttributes())
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
	case "/v1/metrics":
		var req metricscol.ExportMetricsServiceRequest
		if err := proto.Unmarshal(text, &req); err != nil {
			return err
		}
		for _, rm := range req.ResourceMetrics {
			c.about(rm.Resource.GetAttributes())
			for _, sm := range rm.ScopeMetrics {
				c.metrics = append(c.metrics, sm.Metrics...)
			}
		}
	default:
		return fmt.Errorf("is no path of OTLP's")
	}
	return nil
}

func (c *Collector) about(list []*common.KeyValue) {
	for _, kv := range list {
		c.resource[kv.Key] = kv.Value.GetStringValue()
	}
}

// Raw holds the bodies of all requests, and Headers their headers.
func (c *Collector) Raw() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.raw.Bytes())
}

// Headers returns the headers of the requests.
func (c *Collector) Headers() []http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.headers)
}

// Spans returns the received spans.
func (c *Collector) Spans() []*trace.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Metrics returns the received metrics.
func (c *Collector) Metrics() []*metrics.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.metrics)
}

// Text returns a line for each sender, one for each span and one for each value of a metric, sorted.
func (c *Collector) Text() string {
	spans, all := c.Spans(), c.Metrics()
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := []string{fmt.Sprintf("resource service.name=%s", c.resource["service.name"])}
	for name := range c.resource {
		lines = append(lines, "resource has "+name)
	}
	names := map[string]string{}
	for _, s := range spans {
		names[string(s.SpanId)] = s.Name
	}
	for _, s := range spans {
		parent := names[string(s.ParentSpanId)]
		if parent == "" {
			parent = fmt.Sprintf("%x", s.ParentSpanId)
		}
		lines = append(lines, fmt.Sprintf("span %s of %s in %x: %s%s", s.Name, parent, s.TraceId, s.Status.GetCode(),
			attributes(s.Attributes)))
	}
	for _, m := range all {
		for _, p := range m.GetSum().GetDataPoints() {
			lines = append(lines, fmt.Sprintf("metric %s = %d%s", m.Name, p.GetAsInt(), attributes(p.Attributes)))
		}
		for _, p := range m.GetHistogram().GetDataPoints() {
			lines = append(lines, fmt.Sprintf("metric %s of %d%s", m.Name, p.GetCount(), attributes(p.Attributes)))
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

func attributes(list []*common.KeyValue) string {
	out := []string{}
	for _, kv := range list {
		value := kv.Value.GetStringValue()
		switch kv.Value.GetValue().(type) {
		case *common.AnyValue_IntValue:
			value = fmt.Sprint(kv.Value.GetIntValue())
		case *common.AnyValue_BoolValue:
			value = fmt.Sprint(kv.Value.GetBoolValue())
		}
		out = append(out, " "+kv.Key+"="+value)
	}
	slices.Sort(out)
	return strings.Join(out, "")
}
