// Package telemetry sends the measurements of packages unitask and mcp to a collector, by OTLP over HTTP. These are
// spans of runs and their phases, and numbers and durations of runs. The environment's OTEL_ variables configure it.
// Without them it does nothing.
//
// Package cli starts it. A program that embeds unitask has a provider of its own.
package telemetry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/unitask/unitask/internal/bounded"
)

// Patience is the longest time for which the end of a process waits for a collector to take the rest.
const Patience = 2 * time.Second

var patience = Patience // tests shorten it

// toldEvery is the shortest time between two messages about failed exports.
const toldEvery = 10 * time.Minute

// maxTold limits such a message, which may contain a collector's answer.
const maxTold = 300

// signal is one of the two kinds of telemetry.
type signal struct {
	name string // in the names of variables
	on   bool
}

// wanted returns which signals the environment turns on, and an error for a setting that is not supported.
func wanted(getenv func(string) string) (traces, metrics bool, err error) {
	if strings.EqualFold(strings.TrimSpace(getenv("OTEL_SDK_DISABLED")), "true") {
		return false, false, nil
	}
	signals := []signal{{name: "TRACES"}, {name: "METRICS"}}
	for i := range signals {
		s := &signals[i]
		if s.on, err = s.wanted(getenv); err != nil {
			return false, false, err
		}
	}
	return signals[0].on, signals[1].on, nil
}

// wanted reports whether the environment names an exporter for the signal that this package supports.
func (s *signal) wanted(getenv func(string) string) (bool, error) {
	// set returns the value of the first of these variables that is set, trimmed.
	set := func(names ...string) (name, value string) {
		for _, name := range names {
			if value := strings.TrimSpace(getenv(name)); value != "" {
				return name, value
			}
		}
		return "", ""
	}
	endpoint, at := set("OTEL_EXPORTER_OTLP_"+s.name+"_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	name, exporter := set("OTEL_" + s.name + "_EXPORTER")
	switch {
	case exporter == "none", exporter == "" && endpoint == "":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("%s is %.40q: use otlp or none", name, exporter)
	}
	if name, protocol := set("OTEL_EXPORTER_OTLP_"+s.name+"_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol != "" &&
		protocol != "http/protobuf" && protocol != "http/json" {
		return false, fmt.Errorf("%s is %.40q: use http/protobuf, and the collector's port for it, 4318 as a rule", name,
			protocol)
	}
	if u, err := url.Parse(at); endpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" ||
		u.Host == "") {
		return false, fmt.Errorf("%s is no URL of http or https: use one like http://127.0.0.1:4318",
			endpoint) // without the value, which may contain a password
	}
	return true, nil
}

// Start sends this process's spans and metrics, if the environment says so. It reports failed exports to tell, now and
// then. stop sends the rest, for at most Patience.
func Start(ctx context.Context, version string, tell func(string)) (stop func()) {
	traces, metrics, err := wanted(os.Getenv)
	if err != nil {
		tell("nothing is sent to a collector: " + err.Error())
	}
	if !traces && !metrics {
		return func() {}
	}
	said := &saying{tell: tell}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(said.failed))
	otel.SetLogger(funcr.New(func(_, args string) { said.failed(errors.New(args)) }, funcr.Options{}))
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "unitask"), attribute.String("service.version", version),
			attribute.String("service.instance.id", rand.Text())),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		said.failed(err)
	}
	var ends []func(context.Context) error
	if traces {
		if exporter, err := otlptracehttp.New(ctx); err != nil {
			said.failed(err)
		} else {
			provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
			otel.SetTracerProvider(provider)
			ends = append(ends, provider.Shutdown)
		}
	}
	if metrics {
		if exporter, err := otlpmetrichttp.New(ctx); err != nil {
			said.failed(err)
		} else {
			provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)),
				sdkmetric.WithResource(about))
			otel.SetMeterProvider(provider)
			ends = append(ends, provider.Shutdown)
		}
	}
	if continues(os.Getenv) {
		otel.SetTextMapPropagator(propagation.TraceContext{})
	}
	return func() { end(ends, patience, said.failed) }
}

// end calls these at once, and returns when all have returned or the time is over.
func end(ends []func(context.Context) error, patience time.Duration, failed func(error)) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := make(chan error, len(ends))
	for _, end := range ends {
		go func() { done <- end(ctx) }()
	}
	for range ends {
		select {
		case err := <-done:
			if err != nil {
				failed(err)
			}
		case <-ctx.Done():
			failed(fmt.Errorf("the collector did not take it within %v", patience))
			return
		}
	}
}

// continues reports whether traces of callers are continued: OTEL_PROPAGATORS is not set, or contains tracecontext.
func continues(getenv func(string) string) bool {
	names := getenv("OTEL_PROPAGATORS")
	return strings.TrimSpace(names) == "" || slices.ContainsFunc(strings.Split(names, ","),
		func(name string) bool { return strings.TrimSpace(name) == "tracecontext" })
}

// FromEnvironment returns ctx as part of the trace in TRACEPARENT and TRACESTATE, which a calling program sets.
func FromEnvironment(ctx context.Context) context.Context {
	carrier := propagation.MapCarrier{}
	for _, name := range []string{"traceparent", "tracestate"} {
		if value := os.Getenv(strings.ToUpper(name)); value != "" {
			carrier[name] = value
		}
	}
	return otel.GetTextMapPropagator().Extract(ctx, carrier)
}

// saying reports failures, but limits how often.
type saying struct {
	tell func(string)

	mu      sync.Mutex
	last    time.Time
	leftOut int
}

func (s *saying) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.last.IsZero() && time.Since(s.last) < toldEvery {
		s.leftOut++
		return
	}
	text := bounded.Said(err.Error(), maxTold)
	if len(text) == maxTold {
		text += "…"
	}
	if s.leftOut > 0 {
		text += fmt.Sprintf(" (and %d times before)", s.leftOut)
	}
	s.last, s.leftOut = time.Now(), 0
	s.tell("telemetry: " + text)
}
