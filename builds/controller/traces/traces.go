// Package traces makes the spans of builds, if the standard environment of OpenTelemetry asks for
// them. One trace is of one build, from the webhook to the commit that pins its image. What crosses
// reconciles, restarts and replicas is in objects: a traceparent of W3C is in an annotation of the
// AgentBuild until its run is created, then in an annotation of the PipelineRun, from which
// Tekton's own spans go on, and in status. A tenant who changes one misplaces the spans of its own
// build.
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
	// maxText of an attribute, in characters. Senders of webhooks and tenants choose some of them.
	maxText = 256
	// maxContext of a run is Tekton's limit, in bytes.
	maxContext = 1024
	// flushTime is how long the last spans may take at the end of the process.
	flushTime = 3 * time.Second
)

// headers of W3C. Only traceparent is kept, whose length is fixed.
var headers propagation.TraceContext

const header = "traceparent"

// Tracer makes spans. A nil Tracer makes none.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New returns the Tracer that the environment asks for, which is nil without an endpoint. What it
// cannot export is logged, and delays nothing.
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
		problem := text.Printable(err.Error())
		log.Info("exporting traces", "problem", problem[:min(len(problem), maxContext)])
	}))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("setting up the export of traces: %w", err)
	}
	return To(ctx, exporter)
}

// To returns a Tracer of an exporter.
func To(ctx context.Context, exporter sdk.SpanExporter) (*Tracer, error) {
	named := resource.WithAttributes(attribute.String("service.name", "armature-controller"))
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), named, resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf(
			"OTEL_RESOURCE_ATTRIBUTES: %w\n  hint: write it as key=value,key=value", err)
	}
	limits := sdk.NewSpanLimits()
	if n := limits.AttributeValueLengthLimit; n < 0 || n > maxText {
		limits.AttributeValueLengthLimit = maxText
	}
	p := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(of),
		sdk.WithRawSpanLimits(limits))
	return &Tracer{p, p.Tracer("github.com/armature-dev/armature/builds")}, nil
}

// Stop exports the last spans, as far as that takes no longer than flushTime.
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

// Handler makes a span of each request. A sender outside of the cluster does not decide whether it
// is sampled: what it says of a trace of its own is a link.
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

// Since returns a context in which spans begin at a time. Parent is a traceparent that they are
// below, or empty for a new trace, as for what is none.
func Since(ctx context.Context, at time.Time, parent string) context.Context {
	ctx = otelhttp.ContextWithStartTime(ctx, at)
	if len(parent) != len("00-00112233445566778899aabbccddeeff-0011223344556677-01") {
		return ctx
	}
	return headers.Extract(ctx, propagation.MapCarrier{header: parent})
}

// Of returns the traceparent of a context, "" for none.
func Of(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	headers.Inject(ctx, carrier)
	return carrier[header]
}

// OfRun returns the traceparent in the annotation that Tekton reads of a PipelineRun, "" for none.
func OfRun(annotation string) string {
	carrier := propagation.MapCarrier{}
	if len(annotation) > maxContext || json.Unmarshal([]byte(annotation), &carrier) != nil {
		return ""
	}
	return Of(Since(context.Background(), time.Time{}, carrier[header]))
}

// Same reports whether both are of one trace.
func Same(a, b string) bool {
	const id = len("00-00112233445566778899aabbccddeeff")
	return len(a) > id && len(b) > id && a[:id] == b[:id]
}

// Span of something that has begun. It counts when it ends; the zero Span never does.
type Span struct{ span trace.Span }

// Start a span, as Since says. Its attributes are pairs of a name and a value; empty values are
// left out.
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

// Parent returns the traceparent of what is below the span.
func (s Span) Parent() string {
	if s.span == nil {
		return ""
	}
	return Of(trace.ContextWithSpan(context.Background(), s.span))
}

// Annotate adds to the annotations of an AgentBuild that its next run is below the span.
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

// Carrier returns that annotation for a PipelineRun below the span, "" for none.
func (s Span) Carrier() string {
	if s.span == nil {
		return ""
	}
	return fmt.Sprintf(`{"%s":"%s"}`, header, s.Parent())
}

// End a span at a time.
func (s Span) End(at time.Time, failed bool) {
	if s.span == nil {
		return
	}
	if failed {
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End(trace.WithTimestamp(at))
}
