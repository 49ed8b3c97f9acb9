package controller_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/traces"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/api/keys"
)

// spanContext is where Tekton looks for the trace of a run.
const spanContext = "tekton.dev/pipelinerunSpanContext"

// collected are the spans that a collector of OTLP over HTTP got.
type collected struct {
	testing.TB
	url string
	mu  sync.Mutex
	all []*tracev1.Span
}

func newCollector(t testing.TB) *collected {
	c := &collected{TB: t}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		message := &collector.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(body, message)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range message.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				c.all = append(c.all, scope.GetSpans()...)
			}
		}
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// startTraced starts a controller whose spans go to a URL. Stop ends it with its last spans, and
// kill without.
func (w *world) startTraced(url string) (stop, kill func()) {
	w.Helper()
	w.trace(url)
	tracer, kill := w.options.Traces, w.start()
	return func() { kill(); tracer.Stop() }, kill
}

func (w *world) trace(url string) {
	w.Helper()
	exporter, err := otlptracehttp.New(w.Context(), otlptracehttp.WithEndpointURL(url+"/v1/traces"))
	w.must(err)
	w.options.Traces, err = traces.To(w.Context(), exporter)
	w.must(err)
}

// one span of a trace, in hexadecimal digits, and a name, which is below another one: nil for none.
func (c *collected) one(trace, name string, below *tracev1.Span) *tracev1.Span {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*tracev1.Span
	for _, s := range c.all {
		if hex.EncodeToString(s.GetTraceId()) == trace && s.GetName() == name &&
			(below == nil || bytes.Equal(s.GetParentSpanId(), below.GetSpanId())) {
			found = append(found, s)
		}
	}
	if len(found) != 1 ||
		below == nil && name != "build.start" && len(found[0].GetParentSpanId()) > 0 {
		c.Errorf("%d spans %s of trace %s below %s: %v", len(found), name, trace, below.GetName(), c.all)
		return &tracev1.Span{}
	}
	// the API server's times have no fractions
	if s := found[0]; s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() ||
		s.GetStartTimeUnixNano()+uint64(time.Second) < below.GetStartTimeUnixNano() {
		c.Errorf("%s is from %d to %d, below one from %d on", name, s.GetStartTimeUnixNano(),
			s.GetEndTimeUnixNano(), below.GetStartTimeUnixNano())
	}
	return found[0]
}

// attribute of a span.
func attribute(s *tracev1.Span, name string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == name {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// traceOf a run: the trace, and the span that it is below.
func (w *world) traceOf(annotations map[string]string) (trace, parent string) {
	w.Helper()
	parts := strings.Split(traces.OfRun(annotations[spanContext]), "-")
	if len(parts) != 4 {
		w.Fatalf("the run has %s: %q", spanContext, annotations[spanContext])
	}
	return parts[1], parts[2]
}

// From a webhook to the commit that pins the image is one trace, although the controller is
// replaced in the middle of the run. The sender does not choose it, and the next run has another
// one.
func TestTrace(t *testing.T) {
	w, c := newWorld(t), newCollector(t)
	source, apps := w.serveGit(""), w.serveGit("hunter2")
	apps.git("config", "http.receivepack", "true")
	apps.git("config", "receive.denyCurrentBranch", "ignore")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.options.WebhookAddress, w.options.Settings.PlainHTTPHosts =
		free.Addr().String(), []string{"127.0.0.1"}
	w.must(free.Close())
	w.must(w.Client.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "hook"},
			StringData: map[string]string{"token": "a long secret"}}))
	w.login("apps-login", "git", map[string]string{"token": "hunter2"})
	stop, _ := w.startTraced(c.url)
	w.must(w.Client.Create(t.Context(),
		&updates.ImageUpdate{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "apps"},
			Spec: updates.ImageUpdateSpec{
				Repository: apps.url, Branch: "main",
				Credentials: updates.SecretReference{Name: "apps-login"},
				Author:      &updates.Author{Name: "Armature", Email: "bot@example.com"}}}))
	b := w.triggered("weather", source,
		&api.SourceTrigger{Poll: &metav1.Duration{Duration: time.Hour},
			Webhook: &corev1.LocalObjectReference{Name: "hook"}})
	w.built(1, "1")
	w.phase("weather", api.PhaseSucceeded)

	second, stranger := source.commit("second"), strings.Repeat("ab", 16)
	before := time.Now()
	w.eventually("the delivery is accepted", func() string {
		return w.deliverTraced("a long secret", "00-"+stranger+"-"+strings.Repeat("cd", 8)+"-01")
	})
	run := w.run(2)
	stop()
	w.begin(run)
	stop, _ = w.startTraced(c.url)
	w.built(2, "2")
	done := w.phase("weather", api.PhaseSucceeded)
	w.eventually("the image is pinned", func() string {
		if lock := apps.git("show", "main:armature.lock"); !strings.Contains(lock,
			strings.Repeat("2", 64)) {
			return lock
		}
		return ""
	})
	w.updated("apps", updates.ReasonUpToDate, "")
	w.change(b, func(b *api.AgentBuild) { b.Annotations["agent.kagenti.dev/rerun"] = "again" })
	third := w.run(3)
	stop()

	trace, parent := w.traceOf(run.Annotations)
	if _, of, _ := strings.Cut(done.Status.TraceParent, "-"); of[:32] != trace || trace == stranger {
		t.Errorf("status has %s, the run is of trace %s", done.Status.TraceParent, trace)
	}
	webhook := c.one(trace, "webhook", nil)
	if links := webhook.GetLinks(); len(links) != 1 ||
		hex.EncodeToString(links[0].GetTraceId()) != stranger {
		t.Errorf("links of the webhook: %v", links)
	}
	start := c.one(trace, "build.start", c.one(trace, "build.trigger", webhook))
	if hex.EncodeToString(start.GetSpanId()) != parent {
		t.Errorf("the run is below span %s, not below %s", parent, start)
	}
	wait, ran, pin := c.one(trace, "build.wait", start), c.one(trace, "build.run", start),
		c.one(trace, "build.pin", start)
	nano := func(at time.Time) uint64 { return uint64(at.UnixNano()) }
	if wait.GetStartTimeUnixNano() != nano(run.CreationTimestamp.Time) ||
		wait.GetEndTimeUnixNano() != ran.GetStartTimeUnixNano() ||
		ran.GetStartTimeUnixNano() != nano(done.Status.StartTime.Time) ||
		ran.GetEndTimeUnixNano() != nano(done.Status.CompletionTime.Time) {
		t.Errorf("created %s, ran from %s to %s, and the spans are\n%s\n%s", run.CreationTimestamp,
			done.Status.StartTime, done.Status.CompletionTime, wait, ran)
	}
	if webhook.GetStartTimeUnixNano() < nano(before) ||
		pin.GetEndTimeUnixNano() > nano(time.Now()) ||
		pin.GetStartTimeUnixNano() < ran.GetEndTimeUnixNano() {
		t.Errorf("from %s to %s", webhook, pin)
	}
	if attribute(ran, "armature.commit") != second ||
		attribute(ran, "armature.result") != "Succeeded" ||
		attribute(pin, "armature.build") != w.namespace+"/weather" ||
		attribute(start, "armature.reason") != "COMMIT" {
		t.Errorf("attributes: %v\n%v\n%v", start, ran, pin)
	}
	for _, s := range c.all {
		if text := s.String(); strings.Contains(text, "hunter2") ||
			strings.Contains(text, "a long secret") {
			t.Errorf("a secret in %s", text)
		}
	}
	if later, _ := w.traceOf(third.Annotations); later == trace {
		t.Error("a rerun of a user is in the trace of the webhook")
	}
}

// deliverTraced delivers a push with a traceparent; "" where it was accepted.
func (w *world) deliverTraced(secret, traceparent string) string {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), http.MethodPost,
		"http://"+w.options.WebhookAddress+"/hook/"+w.namespace+"/hook", strings.NewReader("{}"))
	w.must(err)
	request.Header.Set("X-Gitlab-Token", secret)
	request.Header.Set("X-Gitlab-Event", "Push Hook")
	request.Header.Set("Traceparent", traceparent)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusAccepted {
		return answer.Status
	}
	return ""
}

// Tekton reads the trace of a run from where it is written, in the form in which it is written.
func TestTektonReadsTraces(t *testing.T) {
	tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"pkg/reconciler/pipelinerun/tracing.go": `SpanContextAnnotation = "` + spanContext + `"`,
		"pkg/tracing/tracing.go":                "otel.SetTextMapPropagator(propagation.TraceContext{})",
	} {
		if text, err := os.ReadFile(filepath.Join(tekton, file)); err != nil ||
			!strings.Contains(string(text), want) {
			t.Errorf("%s of Tekton does not have %s: %v", file, want, err)
		}
	}
}

// What waits in the queue has a span for that, and a retry is in the trace of the first attempt.
func TestTraceOfRetry(t *testing.T) {
	w, c := newWorld(t), newCollector(t)
	w.options.MaxRunningPerNamespace = 1
	stop, _ := w.startTraced(c.url)
	w.create("first", kept)
	first := w.soleRun("first")
	w.create("weather", kept, func(b *api.AgentBuild) {
		b.Spec.Retries = &api.Retries{Limit: 1, Backoff: &metav1.Duration{Duration: time.Second},
			After: []api.RetryOn{api.RetryAny}}
	})
	w.queued("weather", inLine)
	time.Sleep(time.Second) // the times of conditions have no fractions
	w.succeed(first)
	attempt := w.soleRun("weather")
	w.fail(attempt)
	again := w.soleRun("weather")
	w.phase("weather", api.PhaseBuilding)
	w.succeed(again)
	w.event(w.phase("weather", api.PhaseSucceeded), "Succeeded", "") // which comes after its spans
	stop()
	trace, _ := w.traceOf(attempt.Annotations)
	start := c.oneOf(trace, attempt.Name)
	if queue := c.one(trace, "build.queue",
		start); queue.GetEndTimeUnixNano()-queue.GetStartTimeUnixNano() < uint64(time.Second) {
		t.Errorf("%s", queue)
	}
	if failed := c.one(trace, "build.run",
		start); failed.GetStatus().GetCode() != tracev1.Status_STATUS_CODE_ERROR ||
		attribute(failed, "armature.result") != "Failed" {
		t.Errorf("%s", failed)
	}
	if retried := c.oneOf(trace,
		again.Name); !bytes.Equal(retried.GetParentSpanId(), start.GetSpanId()) ||
		c.one(trace, "build.run", retried).GetStatus().GetCode() ==
			tracev1.Status_STATUS_CODE_ERROR {
		t.Errorf("%s", retried)
	}
}

// oneOf a trace is the start of a run.
func (c *collected) oneOf(trace, run string) *tracev1.Span {
	c.Helper()
	for _, s := range c.all {
		if s.GetName() == "build.start" && attribute(s, "armature.run") == run &&
			hex.EncodeToString(s.GetTraceId()) == trace {
			return s
		}
	}
	c.Fatalf("trace %s has no start of run %s: %v", trace, run, c.all)
	return nil
}

// A controller that is killed right after it created a run goes on with the run's trace, and
// attestation is part of it.
func TestTraceOfKilled(t *testing.T) {
	w, c := newWorld(t), newCollector(t)
	shop := newShop(t, true)
	w.create("weather", shop.sold)
	w.trace(c.url)
	w.killedAfterCreate()
	_, kill := w.startTraced(c.url)
	run := w.runOf("weather")
	w.phase("weather", api.PhaseBuilding)
	kill()
	stop, _ := w.startTraced(c.url)
	w.play(run, shop.push(t, "weather:v1"))
	w.event(w.phase("weather", api.PhaseSucceeded), "Succeeded", "") // which comes after its spans
	stop()
	trace, parent := w.traceOf(w.runOf("weather").Annotations)
	start := &tracev1.Span{Name: "build.start"}
	start.SpanId, _ = hex.DecodeString(parent)
	for _, name := range []string{"build.wait", "build.run", "build.attest"} {
		c.one(trace, name, start)
	}
}

// Without traces no object says anything of them, even if a tenant does, and a collector that hangs
// delays no build.
func TestTraceOffOrHanging(t *testing.T) {
	const builds = 20
	took := func(w *world) time.Duration {
		began := time.Now()
		for i := range builds {
			w.create(fmt.Sprintf("b%d", i), kept, func(b *api.AgentBuild) {
				b.Annotations = map[string]string{keys.AnnotationTrace: "00-" +
					strings.Repeat("ab", 16) + "-" + strings.Repeat("cd", 8) + "-01"}
			})
		}
		for _, run := range w.runsOf(builds) {
			w.succeed(&run)
		}
		for i := range builds {
			w.phase(fmt.Sprintf("b%d", i), api.PhaseSucceeded)
		}
		return time.Since(began)
	}
	off := newWorld(t)
	off.start()
	fast := took(off)
	for _, run := range off.runs() {
		if value, ok := run.Annotations[spanContext]; ok {
			t.Errorf("%s has %q", run.Name, value)
		}
	}
	if b := off.build("b0"); b.Status.TraceParent != "" {
		t.Errorf("%+v", b.Status)
	}
	t.Run("hanging", func(t *testing.T) {
		w := newWorld(t)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		w.must(err)
		defer listener.Close() // whoever connects waits
		stop, _ := w.startTraced("http://" + listener.Addr().String())
		slow := took(w)
		t.Logf("%d builds took %s without traces, and %s with a collector that hangs", builds,
			fast.Round(time.Millisecond), slow.Round(time.Millisecond))
		if slow > 3*fast+3*time.Second {
			t.Errorf("%s, and %s without traces", slow, fast)
		}
		for _, run := range w.runs() {
			if trace, _ := w.traceOf(run.Annotations); trace != strings.Repeat("ab", 16) {
				t.Errorf("%s is of trace %s", run.Name, trace)
			}
		}
		stop()
	})
}

// runsOf waits for n runs.
func (w *world) runsOf(n int) (all []tektonv1.PipelineRun) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d runs exist", n), func() string {
		if all = w.runs(); len(all) != n {
			return fmt.Sprintf("%d runs", len(all))
		}
		return ""
	})
	return all
}

// The program takes the endpoint from its environment, and exports what it has when it is asked to
// end.
func TestTraceOfProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the controller; run it without -short")
	}
	w, c := newWorld(t), newCollector(t)
	cmd := w.spawn("/usr/bin/env", "OTEL_EXPORTER_OTLP_ENDPOINT="+c.url,
		"OTEL_BSP_SCHEDULE_DELAY=3600000", buildProgram(t))
	w.create("weather")
	run := w.run(1)
	w.must(cmd.Process.Signal(os.Interrupt))
	w.must(cmd.Wait())
	trace, _ := w.traceOf(run.Annotations)
	c.oneOf(trace, run.Name)
}
