package mcp_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/collector"
	"github.com/unitask/unitask/internal/telemetry"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/mcp"
)

// withHeader adds a header to every request.
type withHeader [2]string

func (w withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(w[0], w[1])
	return http.DefaultTransport.RoundTrip(r)
}

// A call is a span in its caller's trace: the one in _meta, or else the HTTP request's. Without either, it starts a new
// trace.
func TestTraced(t *testing.T) {
	rt := open(t, unitask.PoolSize{})
	url := serve(t, newServer(t, rt, mcp.Options{}), mcp.HTTPOptions{})
	const meta, header = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"
	parent := func(trace string) string { return "00-" + trace + "-00f067aa0ba902b7-01" }
	for _, row := range []struct {
		name   string
		meta   any
		header string
		want   string
	}{
		{"neither", nil, "", "its own"},
		{"an HTTP header", nil, parent(header), header},
		{"_meta", parent(meta), "", meta},
		{"both", parent(meta), parent(header), meta},
		{"a number in _meta", 7, parent(header), "its own"},
		{"an object in _meta", object{"a": parent(meta)}, "", "its own"},
		{"a trace of zeros", parent(strings.Repeat("0", 32)), "", "its own"},
		{"a megabyte", strings.Repeat("0", 1<<20), "", "its own"},
		{"a line more", parent(meta) + "\nx", "", "its own"},
	} {
		c := collector.New(t)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
		stop := telemetry.Start(t.Context(), "1", func(what string) { t.Error(what) })
		transport := &sdk.StreamableClientTransport{Endpoint: url + "/mcp",
			HTTPClient: &http.Client{Transport: withHeader{"Traceparent", row.header}}}
		cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), transport, nil)
		if err != nil {
			t.Fatal(err)
		}
		params := &sdk.CallToolParams{Name: "list_runs", Arguments: object{}}
		if row.meta != nil {
			params.Meta = sdk.Meta{"traceparent": row.meta}
		}
		if _, err := cs.CallTool(t.Context(), params); err != nil {
			t.Fatal(err)
		}
		// the caller chose its name
		_, _ = cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "no-tool-0123456789", Arguments: object{}})
		cs.Close()
		stop()
		spans, got := c.Spans(), "nothing"
		if len(spans) == 1 && spans[0].Name == "tools/call list_runs" {
			if got = fmt.Sprintf("%x", spans[0].TraceId); got != meta && got != header {
				got = "its own"
			}
		}
		attack.Check(t, "the trace of a call with "+row.name, row.want, got)
	}
}

// A run by run_code is in the trace of its call, and so is its wait for a slot.
func TestTracedRun(t *testing.T) {
	testhome.Ready(t, base, image.Linux) // first: a skip must leave no exporter behind
	c := collector.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	stop := telemetry.Start(t.Context(), "1", func(what string) { t.Error(what) })
	rt := open(t, unitask.PoolSize{})
	cs := connect(t, serve(t, newServer(t, rt, mcp.Options{}), mcp.HTTPOptions{}), "")
	res, _, text := call(t, cs, "run_code", js("console.log('printed-0123456789'); process.exit(1)"))
	if !res.IsError || !strings.Contains(text, "printed-0123456789") {
		t.Fatal(text)
	}
	stop()
	got := c.Text()
	for _, want := range []string{"span queue of tools/call run_code in ", "span run of tools/call run_code in ",
		"span code of run in ", " unitask.via=",
		"STATUS_CODE_ERROR error.type=tool_error gen_ai.tool.name=run_code mcp.method.name=tools/call\n",
		"metric unitask.runs = 1 "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(string(c.Raw()), "0123456789") {
		t.Errorf("what it printed is in\n%s", got)
	}
}
