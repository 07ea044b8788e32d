package mcp

import (
	"context"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// scope identifies these spans to their collector.
const scope = "github.com/unitask/unitask/mcp"

// traced begins a span for a call of one of our tools, in the trace of its caller: from _meta, else from the HTTP
// request. Arguments and answers are not in it.
func traced(ctx context.Context, req *sdk.CallToolRequest) (context.Context, func(*sdk.CallToolResult, error)) {
	const method = "tools/call"
	ctx = otel.GetTextMapPropagator().Extract(ctx, calledBy(req))
	ctx, span := otel.Tracer(scope).Start(ctx, method+" "+req.Params.Name, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("mcp.method.name", method),
			attribute.String("gen_ai.tool.name", req.Params.Name)))
	return ctx, func(res *sdk.CallToolResult, err error) {
		if err != nil || res != nil && res.IsError {
			span.SetAttributes(attribute.String("error.type", "tool_error"))
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// calledBy returns the trace that a call names as its own.
func calledBy(req *sdk.CallToolRequest) propagation.TextMapCarrier {
	meta := req.Params.Meta
	if _, ok := meta["traceparent"]; !ok && req.Extra != nil && req.Extra.Header != nil {
		return propagation.HeaderCarrier(req.Extra.Header)
	}
	carrier := propagation.MapCarrier{}
	for _, name := range []string{"traceparent", "tracestate"} {
		if text, ok := meta[name].(string); ok {
			carrier[name] = text
		}
	}
	return carrier
}
