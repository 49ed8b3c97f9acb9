package traces

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// environment of a test has these variables of OpenTelemetry alone.
func environment(t *testing.T, pairs ...string) {
	t.Helper()
	for _, name := range []string{"EXPORTER_OTLP_ENDPOINT", "EXPORTER_OTLP_TRACES_ENDPOINT",
		"EXPORTER_OTLP_PROTOCOL", "SERVICE_NAME", "RESOURCE_ATTRIBUTES", "TRACES_SAMPLER",
		"TRACES_EXPORTER", "SDK_DISABLED"} {
		t.Setenv("OTEL_"+name, "")
	}
	for i := 0; i < len(pairs); i += 2 {
		t.Setenv("OTEL_"+pairs[i], pairs[i+1])
	}
}

// Without an endpoint there is no Tracer, and what is called on none does nothing.
func TestOff(t *testing.T) {
	for _, env := range [][]string{nil,
		{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "SDK_DISABLED", "true"},
		{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "TRACES_EXPORTER", "none"}} {
		environment(t, env...)
		before := runtime.NumGoroutine()
		tracer, err := New(t.Context(), logr.Discard())
		if tracer != nil || err != nil {
			t.Fatalf("%v: %v, %v", env, tracer, err)
		}
		if n := runtime.NumGoroutine(); n != before {
			t.Errorf("%d goroutines, %d before", n, before)
		}
	}
	var none *Tracer
	span := none.Start(t.Context(), "a")
	if span.Parent() != "" || span.Carrier() != "" || span.Annotate(nil) != nil {
		t.Error("a span without a Tracer has a trace")
	}
	span.End(time.Now(), true)
	none.Stop()
	none.Handler("a", http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(),
		httptest.NewRequest(http.MethodPost, "/", nil))
	if n := testing.AllocsPerRun(100, func() {
		none.Start(t.Context(), "a", "build", "b").End(time.Time{}, false)
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// An endpoint that cannot be one is named before anything starts, without its login.
func TestEndpoint(t *testing.T) {
	for _, c := range [][3]string{
		{"EXPORTER_OTLP_ENDPOINT", "collector:4318", "http://HOST:4318"},
		{"EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://me:hunter2@collector", "http://HOST:4318"},
		{"EXPORTER_OTLP_ENDPOINT", "http://me:hunter2@%zz", "http://HOST:4318"},
		{"EXPORTER_OTLP_PROTOCOL", "grpc", "use http/protobuf"},
	} {
		environment(t, "EXPORTER_OTLP_ENDPOINT", "http://collector:4317", c[0], c[1])
		if _, err := New(t.Context(), logr.Discard()); err == nil ||
			!strings.Contains(err.Error(), "hint: ") || !strings.Contains(err.Error(), c[2]) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s=%s: %v", c[0], c[1], err)
		}
	}
}

// The variables of OpenTelemetry decide about the name, the sampling and where spans go.
func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		env     []string
		service string // "" exports nothing
		flags   string
	}{
		{nil, "armature-controller", "01"},
		{[]string{"SERVICE_NAME", "builds-eu"}, "builds-eu", "01"},
		{[]string{"TRACES_SAMPLER", "always_off"}, "", "00"},
	} {
		var got []*collector.ExportTraceServiceRequest
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			message := &collector.ExportTraceServiceRequest{}
			if err := proto.Unmarshal(body, message); err != nil || r.URL.Path != "/v1/traces" {
				t.Errorf("%s: %v", r.URL.Path, err)
			}
			got = append(got, message)
		}))
		environment(t, append([]string{"EXPORTER_OTLP_ENDPOINT", server.URL}, c.env...)...)
		tracer, err := New(t.Context(), logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		span := tracer.Start(t.Context(), "build.run", "build", "team/weather")
		if parent := span.Parent(); !strings.HasSuffix(parent, "-"+c.flags) &&
			!strings.HasSuffix(parent, "-0"+string(c.flags[1]+2)) {
			t.Errorf("%v: %s", c.env, parent)
		}
		span.End(time.Now(), false)
		tracer.Stop()
		server.Close()
		if c.service == "" {
			if len(got) > 0 {
				t.Errorf("%v: %v", c.env, got)
			}
			continue
		}
		if len(got) != 1 || !strings.Contains(got[0].String(), c.service) ||
			!strings.Contains(got[0].String(), "team/weather") {
			t.Errorf("%v: %v", c.env, got)
		}
	}
}

// What tenants and senders choose is cut, and what is no trace context begins a trace.
func TestSpansAreBounded(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tracer, err := To(t.Context(), spans)
	if err != nil {
		t.Fatal(err)
	}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct{ annotation, want string }{
		{`{"traceparent":"` + parent + `","tracestate":"a=b"}`, parent},
		{`{"traceparent":"` + strings.ToUpper(parent) + `"}`, ""},
		{`{"traceparent":"00-00000000000000000000000000000000-b7ad6b7169203331-01"}`, ""},
		{`{"traceparent":"cc` + parent[2:] + `-` + strings.Repeat("x", 100) + `"}`, ""},
		{`{"traceparent":"` + parent + `","x":"` + strings.Repeat("x", 1024) + `"}`, ""},
		{`{"traceparent":1}`, ""},
		{`nonsense`, ""},
		{"", ""},
	} {
		if got := OfRun(c.annotation); got != c.want {
			t.Errorf("%s: %q", c.annotation, got)
		}
	}
	for _, forged := range []string{"", strings.Repeat("0", 55),
		parent + "-" + strings.Repeat("x", 1<<16)} {
		if span := tracer.Start(Since(t.Context(), time.Now(), forged),
			"a"); Same(span.Parent(), parent) || span.Parent() == "" {
			t.Errorf("%.60q: %s", forged, span.Parent())
		}
	}
	tracer.Start(Since(t.Context(), time.Unix(1, 0), parent), "a", "build",
		strings.Repeat("ü", 10000), "commit", "").End(time.Unix(2, 0), true)
	if err := tracer.provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := spans.GetSpans()[0]
	if len(got.Attributes) != 1 ||
		got.Attributes[0].Value.AsString() != strings.Repeat("ü", maxText) {
		t.Errorf("%d attributes, %d characters", len(got.Attributes),
			len(got.Attributes[0].Value.AsString()))
	}
	if !got.StartTime.Equal(time.Unix(1, 0)) || !got.EndTime.Equal(time.Unix(2, 0)) ||
		got.Parent.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("%+v", got)
	}
}

// A sender outside of the cluster neither chooses the trace nor has it sampled.
func TestStranger(t *testing.T) {
	for sampler, want := range map[string]int{"": 1, "parentbased_always_off": 0} {
		environment(t, "TRACES_SAMPLER", sampler)
		spans := tracetest.NewInMemoryExporter()
		tracer, err := To(t.Context(), spans)
		if err != nil {
			t.Fatal(err)
		}
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost,
			"/hook/team/hook?token=hunter2", nil)
		request.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		request.Header.Set("Tracestate", "a="+strings.Repeat("x", 200))
		request.Header.Set("User-Agent", strings.Repeat("x", 10000))
		arrived := time.Now().Add(-time.Minute)
		inside := ""
		tracer.Handler("webhook",
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				inside = Of(r.Context())
			})).
			ServeHTTP(httptest.NewRecorder(),
				request.WithContext(Since(request.Context(), arrived, "")))
		if err := tracer.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(inside, "0af7651916cd43dd8448eb211c80319c") || inside == "" {
			t.Errorf("the handler is in trace %q", inside)
		}
		got := spans.GetSpans()
		if len(got) != want {
			t.Fatalf("%q: %d spans", sampler, len(got))
		}
		for _, span := range got {
			if span.Name != "webhook" || span.Parent.IsValid() || len(span.Links) != 1 ||
				span.Links[0].SpanContext.TraceState().Len() != 0 ||
				!span.StartTime.Equal(arrived) {
				t.Errorf("%+v", span)
			}
			for _, a := range span.Attributes {
				if text := a.Value.AsString(); len(text) > maxText ||
					strings.Contains(text, "hunter2") {
					t.Errorf("%s is %.300q", a.Key, text)
				}
			}
		}
	}
}

// A collector that hangs costs those who make spans nothing, and the end of the process a bounded
// time.
func TestHangingCollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() // whoever connects waits
	environment(t, "EXPORTER_OTLP_ENDPOINT", "http://"+listener.Addr().String())
	tracer, err := New(t.Context(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	const n = 20000
	for range n {
		tracer.Start(context.Background(), "a", "build", "team/weather").End(time.Now(), false)
	}
	if took := time.Since(began); took > n*200*time.Microsecond {
		t.Errorf("%d spans took %s", n, took)
	}
	began = time.Now()
	tracer.Stop()
	if took := time.Since(began); took > flushTime+2*time.Second {
		t.Errorf("the end took %s", took)
	}
}

// A collector that refuses is in the log, which is no place for its login either.
func TestRefusal(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no tenant\x1b[2J"+strings.Repeat("x", 10000), http.StatusForbidden)
	}))
	defer server.Close()
	environment(t, "EXPORTER_OTLP_ENDPOINT",
		strings.Replace(server.URL, "http://", "http://me:hunter2@", 1))
	var logged []string
	tracer, err := New(t.Context(),
		funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	tracer.Start(t.Context(), "a").End(time.Now(), false)
	tracer.Stop()
	// the handler is the process's
	refused := slices.IndexFunc(logged,
		func(line string) bool { return strings.Contains(line, "403 Forbidden (body: no tenant") })
	if refused < 0 || strings.Contains(logged[refused], "hunter2") ||
		strings.Contains(logged[refused], "\x1b") || len(logged[refused]) > 2*maxContext {
		t.Errorf("%.3000q", logged)
	}
}
