package sidecars

import (
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// TraceMountPath is the directory of the tracing settings in application containers: one file for
// each setting, as 001's sample code reads them ("Agent Code Requirements"), and an OpenTelemetry
// declarative configuration for programs whose SDK loads one.
const TraceMountPath = "/etc/kagenti/trace"

// TraceConfigVariable names the OpenTelemetry SDK's variable for TraceConfigFile.
const (
	TraceConfigVariable = "OTEL_CONFIG_FILE"
	TraceConfigFile     = TraceMountPath + "/otel-config.yaml"
)

// AppendTraceConfigMap appends the ConfigMap with the workload's tracing settings as a YAML
// document without separators.
func AppendTraceConfigMap(dst []byte, s *identity.Settings) []byte {
	return s.AppendConfigMap(dst, identity.TraceConfigMap,
		func(dst []byte, s *identity.Settings) []byte {
			return block.Append(dst, 0, block.Map("data",
				append(traceSettings(s), block.Document("otel-config.yaml", otelConfig(s)...))...))
		})
}

func traceSettings(s *identity.Settings) (data []block.Node) {
	t := &s.Trace
	text := func(key, value string) { data = append(data, block.Text(key, value)) }
	flag := func(key string, value bool) { text(key, strconv.FormatBool(value)) }
	if e := firstExporter(t.Exporters); e != nil {
		text("otel_endpoint", e.Endpoint)
		text("otel_protocol", e.Protocol)
		text("otel_compression", e.Compression)
		flag("otel_insecure", e.Insecure)
	}
	text("otel_service_name", serviceName(s))
	text("otel_resource_attributes", string(appendAttributeList(nil, s)))
	text("sampling_type", t.SamplerType)
	text("sampling_rate", samplingRate(t))
	flag("genai_enabled", t.GenAI.Enabled)
	flag("genai_capture_prompts", t.GenAI.Enabled && t.GenAI.Prompts)
	flag("genai_capture_completions", t.GenAI.Enabled && t.GenAI.Completions)
	flag("genai_capture_model_parameters", t.GenAI.Enabled && t.GenAI.ModelParameters)
	if t.MLflow.Enabled {
		text("mlflow_tracking_uri", t.MLflow.TrackingURI)
		experiment := t.MLflow.ExperimentName
		if experiment == "" {
			experiment = s.Subject.Name
		}
		text("mlflow_experiment_name", experiment)
	}
	if t.Prometheus.Enabled {
		text("prometheus_port", strconv.Itoa(t.Prometheus.Port))
		text("prometheus_path", t.Prometheus.Path)
	}
	return data
}

// firstExporter returns the first exporter that has an endpoint.
func firstExporter(exporters []identity.Exporter) *identity.Exporter {
	for i := range exporters {
		if exporters[i].Type != "console" {
			return &exporters[i]
		}
	}
	return nil
}

// serviceName returns the attribute service.name if it is set, and the workload's name otherwise.
func serviceName(s *identity.Settings) string {
	for i := range s.Trace.Attributes {
		if s.Trace.Attributes[i].Name == "service.name" {
			return s.Trace.Attributes[i].Value
		}
	}
	return s.Subject.Name
}

// samplingRate returns the share of traces that the sampler keeps.
func samplingRate(t *identity.Trace) string {
	switch {
	case t.SamplerType == "always_off":
		return "0"
	case t.SamplerType == "always_on" || t.SamplerRate == "":
		return "1"
	}
	return t.SamplerRate
}

// appendAttributeList appends the value of OTEL_RESOURCE_ATTRIBUTES: key=value pairs separated by
// commas, percent-encoded as W3C baggage.
func appendAttributeList(dst []byte, s *identity.Settings) []byte {
	dst = appendPercent(append(dst, "service.name="...), serviceName(s))
	for i := range s.Trace.Attributes {
		a := &s.Trace.Attributes[i]
		if a.Name == "service.name" {
			continue
		}
		dst = appendPercent(append(dst, ','), a.Name)
		dst = appendPercent(append(dst, '='), a.Value)
	}
	return dst
}

func appendPercent(dst []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	for _, c := range []byte(s) {
		switch {
		case c <= ' ' || c >= 0x7f, strings.IndexByte(`",;\%=`, c) >= 0:
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// otelConfig returns the tracing part of an OpenTelemetry configuration, format 1.0.
func otelConfig(s *identity.Settings) []block.Node {
	attributes := []block.Node{block.Map("", block.Plain("name", "service.name"),
		otelText("value", serviceName(s)))}
	for _, a := range s.Trace.Attributes {
		if a.Name != "service.name" {
			attributes = append(attributes,
				block.Map("", otelText("name", a.Name), otelText("value", a.Value)))
		}
	}

	processors := block.Plain("processors", "[]")
	if exporters := s.Trace.Exporters; len(exporters) > 0 {
		items := make([]block.Node, 0, len(exporters))
		for i := range exporters {
			items = append(items, processor(&exporters[i]))
		}
		processors = block.List("processors", items...)
	}

	return []block.Node{
		block.Text("file_format", "1.0"),
		block.Map("resource", block.List("attributes", attributes...)),
		block.Map("propagator", block.List("composite", block.Map("", block.Null("tracecontext")),
			block.Map("", block.Null("baggage")))),
		block.Map("tracer_provider", processors, block.Map("sampler", sampler(&s.Trace))),
	}
}

// otelText returns a string in which an SDK expands no variables.
func otelText(key, text string) block.Node {
	return block.Plain(key, string(scalar.AppendOTel(nil, text)))
}

func processor(e *identity.Exporter) block.Node {
	if e.Type == "console" {
		return block.Map("",
			block.Map("simple", block.Map("exporter", block.Plain("console", "{}"))))
	}

	protocol, grpc := "otlp_http", e.Protocol == "grpc"
	if grpc {
		protocol = "otlp_grpc"
	}
	return block.Map("", block.Map("batch", block.Map("exporter", block.Map(protocol,
		otelText("endpoint", otlpEndpoint(e)),
		block.If(e.Protocol == "http/json", block.Plain("encoding", "json")),
		block.Plain("compression", e.Compression),
		block.If(grpc && e.Insecure, block.Map("tls", block.Bool("insecure", true)))))))
}

func sampler(t *identity.Trace) block.Node {
	ratio := block.Map("trace_id_ratio_based", block.Plain("ratio", samplingRate(t)))
	switch t.SamplerType {
	case "always_off":
		return block.Plain("always_off", "{}")
	case "probabilistic":
		return ratio
	case "parentbased_probabilistic":
		return block.Map("parent_based", block.Map("root", ratio))
	}
	return block.Plain("always_on", "{}")
}

// otlpEndpoint returns the exporter's endpoint as the URL that the format requires, with the path
// of OTLP over HTTP.
func otlpEndpoint(e *identity.Exporter) string {
	scheme, rest, found := strings.Cut(e.Endpoint, "://")
	if !found {
		scheme, rest = "https", e.Endpoint
		if e.Insecure {
			scheme = "http"
		}
	}
	if e.Type == "jaeger" {
		rest = otlpPort(rest, e.Protocol)
	}
	if e.Protocol != "grpc" && strings.IndexByte(rest, '/') < 0 {
		rest += "/v1/traces"
	}
	return scheme + "://" + rest
}

// otlpPort replaces the ports of Jaeger's own protocols, for which OpenTelemetry has no exporter,
// by Jaeger's OTLP ports.
func otlpPort(host, protocol string) string {
	for _, own := range [...]string{":14250", ":14268"} {
		if before, found := strings.CutSuffix(host, own); found {
			if protocol == "grpc" {
				return before + ":4317"
			}
			return before + ":4318"
		}
	}
	return host
}
