package agenttrace_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/contrib/otelconf"
	"go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/sidecars"
)

func weatherAgent() identity.Workload {
	return identity.Workload{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: "default", Name: "weather-agent",
		SPIFFE: true,
	}
}

func settings(t *testing.T, spec string) *identity.Settings {
	t.Helper()
	var at *api.AgentTrace
	if spec != "" {
		at = &api.AgentTrace{}
		// UnmarshalStrict takes genai.enabled for the enabled of the inline TraceSpec
		text, err := yaml.YAMLToJSONStrict([]byte(spec))
		if err == nil {
			err = json.Unmarshal(text, at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	base, _ := sidecars.All().Base(
		&api.RenderConfig{Spec: api.RenderConfigSpec{Trace: &api.TraceSpec{}}})
	s, findings := identity.Resolve(&base, weatherAgent(), nil, at, nil)
	if finding.Failed(findings) {
		t.Fatal(findings)
	}
	return &s
}

func configMap(t *testing.T, s *identity.Settings) *corev1.ConfigMap {
	t.Helper()
	text := sidecars.AppendTraceConfigMap(nil, s)
	cm := &corev1.ConfigMap{}
	if err := yaml.UnmarshalStrict(text, cm); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return cm
}

// load reads otel-config.yaml with OpenTelemetry's own loader and builds the
// SDK that it describes.
func load(t *testing.T, text string) *otelconf.OpenTelemetryConfiguration {
	t.Helper()
	conf, err := otelconf.ParseYAML([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	sdk, err := otelconf.NewSDK(otelconf.WithContext(t.Context()),
		otelconf.WithOpenTelemetryConfiguration(*conf))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if _, unused := sdk.TracerProvider().(noop.TracerProvider); unused {
		t.Errorf("no tracing comes of\n%s", text)
	}
	return conf
}

func TestDefaults(t *testing.T) {
	cm := configMap(t, settings(t, ""))
	if cm.Name != "weather-agent-trace" || cm.Namespace != "default" {
		t.Errorf("%s/%s", cm.Namespace, cm.Name)
	}
	conf := load(t, cm.Data["otel-config.yaml"])
	exporter := conf.TracerProvider.Processors[0].Batch.Exporter.OTLPGrpc
	if got := *exporter.Endpoint; got != "http://otel-collector.observability:4317" {
		t.Errorf("endpoint %s", got)
	}
	delete(cm.Data, "otel-config.yaml")
	if diff := cmp.Diff(map[string]string{
		"otel_endpoint": "otel-collector.observability:4317", "otel_protocol": "grpc",
		"otel_compression": "none", "otel_insecure": "true", "otel_service_name": "weather-agent",
		"otel_resource_attributes": "service.name=weather-agent", "sampling_type": "always_on",
		"sampling_rate": "1", "genai_enabled": "false", "genai_capture_prompts": "false",
		"genai_capture_completions": "false", "genai_capture_model_parameters": "false",
	}, cm.Data); diff != "" {
		t.Error(diff)
	}
}

// example is the CR of 001, lines 502 to 543.
const example = `
apiVersion: kagenti.io/v1alpha1
kind: AgentTrace
metadata:
  name: weather-agent-trace
  namespace: default
spec:
  targetRef:
    kind: Deployment
    name: weather-agent
  exporters:
  - type: otlp
    endpoint: "otel-collector.observability:4317"
    protocol: grpc
    compression: gzip
  - type: jaeger
    endpoint: "jaeger-collector.observability:14250"
  sampling:
    type: probabilistic
    rate: 0.1
  genai:
    enabled: true
    capturePrompts: true
    captureCompletions: true
    captureModelParameters: true
  resourceAttributes:
    service.name: "weather-agent"
    service.version: "2.1.0"
    deployment.environment: "production"
  integration:
    mlflow:
      enabled: true
      trackingUri: "http://mlflow.ml-platform:5000"
      experimentName: "weather-agent-prod"
    prometheus:
      enabled: true
      port: 9090
      path: "/metrics"
`

func TestExample(t *testing.T) {
	cm := configMap(t, settings(t, example))
	conf := load(t, cm.Data["otel-config.yaml"])
	if n := len(conf.TracerProvider.Processors); n != 2 {
		t.Fatalf("%d processors", n)
	}
	first := conf.TracerProvider.Processors[0].Batch.Exporter.OTLPGrpc
	second := conf.TracerProvider.Processors[1].Batch.Exporter.OTLPGrpc
	if *first.Endpoint != "http://otel-collector.observability:4317" ||
		*first.Compression != "gzip" {
		t.Errorf("first exporter: %s %s", *first.Endpoint, *first.Compression)
	}
	if *second.Endpoint != "http://jaeger-collector.observability:4317" {
		t.Errorf("second exporter: %s", *second.Endpoint)
	}
	if got := *conf.TracerProvider.Sampler.TraceIDRatioBased.Ratio; got != 0.1 {
		t.Errorf("ratio %v", got)
	}
	attributes := map[string]any{}
	for _, a := range conf.Resource.Attributes {
		attributes[a.Name] = a.Value
	}
	if diff := cmp.Diff(map[string]any{
		"service.name": "weather-agent", "service.version": "2.1.0",
		"deployment.environment": "production",
	}, attributes); diff != "" {
		t.Error(diff)
	}
	delete(cm.Data, "otel-config.yaml")
	if diff := cmp.Diff(map[string]string{
		"otel_endpoint": "otel-collector.observability:4317", "otel_protocol": "grpc",
		"otel_compression": "gzip", "otel_insecure": "true",
		"otel_service_name": "weather-agent",
		"otel_resource_attributes": "service.name=weather-agent,deployment." +
			"environment=production,service.version=2.1.0",
		"sampling_type": "probabilistic", "sampling_rate": "0.1",
		"genai_enabled": "true", "genai_capture_prompts": "true",
		"genai_capture_completions": "true", "genai_capture_model_parameters": "true",
		"mlflow_tracking_uri":    "http://mlflow.ml-platform:5000",
		"mlflow_experiment_name": "weather-agent-prod", "prometheus_port": "9090",
		"prometheus_path": "/metrics",
	}, cm.Data); diff != "" {
		t.Error(diff)
	}
}

func TestExportersAndSamplers(t *testing.T) {
	for name, test := range map[string]struct {
		spec  string
		check func(t *testing.T, p *otelconf.TracerProvider)
	}{
		"http with a path of its own": {
			`exporters: [{type: otlp, endpoint: "https://otel.example.com/api/traces", protocol: http/protobuf}]`,
			func(t *testing.T, p *otelconf.TracerProvider) {
				if got := *p.Processors[0].Batch.Exporter.OTLPHttp.Endpoint; got !=
					"https://otel.example.com/api/traces" {
					t.Error(got)
				}
			},
		},
		"http without a path": {
			`exporters: [{type: otlp, endpoint: "otel:4318", protocol: http/protobuf}]`,
			func(t *testing.T, p *otelconf.TracerProvider) {
				if got := *p.Processors[0].Batch.Exporter.OTLPHttp.Endpoint; got !=
					"http://otel:4318/v1/traces" {
					t.Error(got)
				}
			},
		},
		"grpc with TLS": {
			`exporters: [{type: otlp, endpoint: "otel:4317", insecure: false}]`,
			func(t *testing.T, p *otelconf.TracerProvider) {
				if got := *p.Processors[0].Batch.Exporter.OTLPGrpc.Endpoint; got != "https://otel:4317" {
					t.Error(got)
				}
			},
		},
		"jaeger over http": {
			`exporters: [{type: jaeger, endpoint: "jaeger:14268", protocol: http/protobuf}]`,
			func(t *testing.T, p *otelconf.TracerProvider) {
				if got := *p.Processors[0].Batch.Exporter.OTLPHttp.Endpoint; got !=
					"http://jaeger:4318/v1/traces" {
					t.Error(got)
				}
			},
		},
		"console": {
			`exporters: [{type: console}]`,
			func(t *testing.T, p *otelconf.TracerProvider) {
				if p.Processors[0].Simple == nil || p.Processors[0].Simple.Exporter.Console == nil {
					t.Errorf("%+v", p.Processors[0])
				}
			},
		},
		"nothing exported": {
			`exporters: []`,
			func(t *testing.T, p *otelconf.TracerProvider) {
				if len(p.Processors) != 0 {
					t.Errorf("%+v", p.Processors)
				}
			},
		},
		"always off": {
			`sampling: {type: always_off}`,
			func(t *testing.T, p *otelconf.TracerProvider) {
				if p.Sampler.AlwaysOff == nil {
					t.Errorf("%+v", p.Sampler)
				}
			},
		},
		"parent based": {
			`sampling: {type: parentbased_probabilistic, rate: 2.5e-1}`,
			func(t *testing.T, p *otelconf.TracerProvider) {
				if got := *p.Sampler.ParentBased.Root.TraceIDRatioBased.Ratio; got != 0.25 {
					t.Error(got)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(t,
				"spec:\n  targetRef: {kind: Deployment, name: weather-agent}\n  "+test.spec+"\n")
			test.check(t, load(t, configMap(t, s).Data["otel-config.yaml"]).TracerProvider)
		})
	}
}

// FuzzAttributes puts a string into attributes and settings, past all
// validation, and finds it again in every file, with no variable expanded.
func FuzzAttributes(f *testing.F) {
	for _, s := range []string{"plain", "a\nb: c", `"`, `\`, "${HOME}", "a${HOME}b", "$HOME", "#",
		"---\n", "ä", "true", "1", "a,b=c%", "'", "\t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, x string) {
		x = strings.ToValidUTF8(x, "")
		if !scalar.Portable(x) {
			return // an error finding: identity/dollar
		}
		base, _ := sidecars.All().Base(
			&api.RenderConfig{Spec: api.RenderConfigSpec{Trace: &api.TraceSpec{}}})
		s, _ := identity.Resolve(&base, weatherAgent(), nil, nil, nil)
		s.Trace.Attributes = []identity.Attribute{{Name: "key", Value: x}, {Name: "k" + x, Value: x}}
		s.Trace.MLflow = identity.MLflow{Enabled: true, TrackingURI: x, ExperimentName: x}
		s.Trace.Prometheus = identity.Prometheus{Enabled: true, Port: 1, Path: x}
		s.Trace.Exporters[0].Endpoint = x
		cm := configMap(t, &s)
		for _, key := range []string{"otel_endpoint", "mlflow_tracking_uri", "prometheus_path"} {
			if cm.Data[key] != x {
				t.Errorf("%s: %q became %q", key, x, cm.Data[key])
			}
		}
		conf, err := otelconf.ParseYAML([]byte(cm.Data["otel-config.yaml"]))
		if err != nil {
			t.Fatalf("%v in\n%s", err, cm.Data["otel-config.yaml"])
		}
		got := conf.Resource.Attributes
		if len(got) != 3 || got[1].Value != x || got[2].Name != "k"+x {
			t.Errorf("%q became %+v", x, got)
		}
	})
}

func BenchmarkAppendConfigMap(b *testing.B) {
	base, _ := sidecars.All().Base(
		&api.RenderConfig{Spec: api.RenderConfigSpec{Trace: &api.TraceSpec{}}})
	s, _ := identity.Resolve(&base, weatherAgent(), nil, nil, nil)
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = sidecars.AppendTraceConfigMap(dst[:0], &s)
	}
	b.SetBytes(int64(len(dst)))
}
