// Package traces creates the spans of builds, if the standard environment variables of
// OpenTelemetry ask for them. A trace covers one build, from the webhook to the commit that pins
// its image. Its state survives reconciles, restarts and other replicas in objects: a W3C
// traceparent is in an annotation of the AgentBuild until its run is created, then in an annotation
// of the PipelineRun, which Tekton's own spans continue, and in status. A tenant who changes one
// misplaces the spans of its own build.
package traces

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
)

const (
	// maxText bounds an attribute in characters. Webhooks and tenants choose some attributes.
	maxText = 256
	// maxContext bounds the annotation of a run in bytes, as Tekton does.
	maxContext = 1024
	// flushTime bounds the export of the last spans at the end of the process.
	flushTime = 3 * time.Second
)

// headers are the W3C headers. Only traceparent is kept, which has a fixed length.
var headers propagation.TraceContext

const header = "traceparent"

// Tracer creates spans. A nil Tracer creates none.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New returns the Tracer that the environment variables ask for, or nil without an endpoint. Export
// errors are logged and delay nothing.
func New(ctx context.Context, log logr.Logger) (*Tracer, error) {
	env := func(name string) string {
		return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_"+name),
			os.Getenv("OTEL_EXPORTER_OTLP_"+name))
	}
	endpoint := env("ENDPOINT")
	if endpoint == "" || os.Getenv("OTEL_SDK_DISABLED") == "true" ||
		os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" ||
		u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("OTEL_EXPORTER_OTLP_ENDPOINT is not an address for traces\n" +
			"  hint: write it as http://HOST:4318")
	}
	if protocol := env("PROTOCOL"); protocol == "grpc" {
		return nil, errors.New("OTEL_EXPORTER_OTLP_PROTOCOL: traces are not exported by grpc\n" +
			"  hint: use http/protobuf, and the collector's port for HTTP, which is 4318 " +
			"in most cases")
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Info("exporting traces", "problem", text.Cut(text.Printable(err.Error()), maxContext))
	}))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("setting up the export of traces: %w", err)
	}
	return To(ctx, exporter)
}

// To returns a Tracer that exports to an exporter.
func To(ctx context.Context, exporter sdk.SpanExporter) (*Tracer, error) {
	named := resource.WithAttributes(attribute.String("service.name", "armature-controller"))
	process, err := resource.New(ctx, resource.WithTelemetrySDK(), named, resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf(
			"OTEL_RESOURCE_ATTRIBUTES: %w\n  hint: write it as key=value,key=value", err)
	}
	limits := sdk.NewSpanLimits()
	if n := limits.AttributeValueLengthLimit; n < 0 || n > maxText {
		limits.AttributeValueLengthLimit = maxText
	}
	p := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(process),
		sdk.WithRawSpanLimits(limits))
	return &Tracer{p, p.Tracer("github.com/armature-dev/armature/builds")}, nil
}

// Stop exports the last spans. It gives up after flushTime.
func (t *Tracer) Stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		otel.Handle(fmt.Errorf("the last traces are lost: %w", err))
	}
}

// Handler creates a span for each request. A sender outside of the cluster cannot decide whether it
// is sampled: the trace of the sender becomes a link.
func (t *Tracer) Handler(name string, next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	traced := otelhttp.NewHandler(next, name,
		otelhttp.WithTracerProvider(t.provider),
		otelhttp.WithMeterProvider(noop.NewMeterProvider()),
		otelhttp.WithPropagators(headers),
		otelhttp.WithPublicEndpointFn(func(*http.Request) bool { return true }),
		otelhttp.WithSpanNameFormatter(func(name string, _ *http.Request) string { return name }),
	)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Tracestate")
		traced.ServeHTTP(w, r)
	})
}

// Since returns a context in which spans begin at a time. parent is the traceparent of their
// parent; an empty or invalid one begins a new trace.
func Since(ctx context.Context, at time.Time, parent string) context.Context {
	ctx = otelhttp.ContextWithStartTime(ctx, at)
	if len(parent) != len("00-00112233445566778899aabbccddeeff-0011223344556677-01") {
		return ctx
	}
	return headers.Extract(ctx, propagation.MapCarrier{header: parent})
}

// Of returns the traceparent of a context, or "".
func Of(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	headers.Inject(ctx, carrier)
	return carrier[header]
}

// OfRun returns the traceparent in the annotation of a PipelineRun that Tekton reads, or "".
func OfRun(annotation string) string {
	carrier := propagation.MapCarrier{}
	if len(annotation) > maxContext || json.Unmarshal([]byte(annotation), &carrier) != nil {
		return ""
	}
	return Of(Since(context.Background(), time.Time{}, carrier[header]))
}

// Same reports whether two traceparents are of the same trace.
func Same(a, b string) bool {
	const id = len("00-00112233445566778899aabbccddeeff")
	return len(a) > id && len(b) > id && a[:id] == b[:id]
}

// Span is a span that has begun. It is exported after its end. The zero Span does nothing.
type Span struct{ span trace.Span }

// Start starts a span with the time and parent that Since set. Its attributes are pairs of a name
// and a value; empty values are left out.
func (t *Tracer) Start(ctx context.Context, name string, pairs ...string) Span {
	if t == nil {
		return Span{}
	}
	var attributes []attribute.KeyValue
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			attributes = append(attributes, attribute.String("armature."+pair[0], pair[1]))
		}
	}
	options := []trace.SpanStartOption{trace.WithAttributes(attributes...)}
	if at := otelhttp.StartTimeFromContext(ctx); !at.IsZero() {
		options = append(options, trace.WithTimestamp(at))
	}
	_, span := t.tracer.Start(ctx, name, options...)
	return Span{span}
}

// Parent returns the traceparent for the children of the span.
func (s Span) Parent() string {
	if s.span == nil {
		return ""
	}
	return Of(trace.ContextWithSpan(context.Background(), s.span))
}

// Annotate makes the span the parent of an AgentBuild's next run, in its annotations.
func (s Span) Annotate(annotations map[string]string) map[string]string {
	if s.span == nil {
		return annotations
	}
	if annotations == nil {
		annotations = make(map[string]string)
	}
	annotations[keys.AnnotationTrace] = s.Parent()
	return annotations
}

// Carrier returns the annotation of a PipelineRun whose parent is the span, or "".
func (s Span) Carrier() string {
	if s.span == nil {
		return ""
	}
	return fmt.Sprintf(`{"%s":"%s"}`, header, s.Parent())
}

// End ends the span at a time.
func (s Span) End(at time.Time, failed bool) {
	if s.span == nil {
		return
	}
	if failed {
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End(trace.WithTimestamp(at))
}
