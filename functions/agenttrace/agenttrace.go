// Package agenttrace renders the ConfigMap <workload>-trace, which the
// application containers see at /etc/kagenti/trace: one file per setting, as
// 001's sample code reads them, and an OpenTelemetry declarative configuration
// for programs whose SDK loads one.
package agenttrace

import (
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// MountPath is where the application containers see the files: 001, "Agent
// Code Requirements".
const MountPath = "/etc/kagenti/trace"

// ConfigVariable leads an SDK of OpenTelemetry to ConfigFile.
const (
	ConfigVariable = "OTEL_CONFIG_FILE"
	ConfigFile     = MountPath + "/otel-config.yaml"
)

// AppendConfigMap appends the workload's ConfigMap as a YAML document without
// separators.
func AppendConfigMap(dst []byte, s *identity.Settings) []byte {
	return s.AppendConfigMap(dst, identity.TraceConfigMap, appendData)
}

func appendData(dst []byte, s *identity.Settings) []byte {
	dst = append(dst, "data:\n"...)
	dst = appendSettings(dst, s)
	dst = append(dst, "  otel-config.yaml: |\n"...)
	return appendOTelConfig(dst, s)
}

func appendSettings(dst []byte, s *identity.Settings) []byte {
	t := &s.Trace
	text := func(key, value string) {
		dst = append(append(append(dst, "  "...), key...), ": "...)
		dst = append(scalar.AppendYAML(dst, value), '\n')
	}
	flag := func(key string, value bool) { text(key, strconv.FormatBool(value)) }
	if e := first(t.Exporters); e != nil {
		text("otel_endpoint", e.Endpoint)
		text("otel_protocol", e.Protocol)
		text("otel_compression", e.Compression)
		flag("otel_insecure", e.Insecure)
	}
	text("otel_service_name", serviceName(s))
	dst = append(dst, "  otel_resource_attributes: \""...)
	dst = appendAttributeList(dst, s)
	dst = append(dst, "\"\n"...)
	text("sampling_type", t.SamplerType)
	text("sampling_rate", rate(t))
	flag("genai_enabled", t.GenAI.Enabled)
	flag("genai_capture_prompts", t.GenAI.Enabled && t.GenAI.Prompts)
	flag("genai_capture_completions", t.GenAI.Enabled && t.GenAI.Completions)
	flag("genai_capture_model_parameters", t.GenAI.Enabled && t.GenAI.ModelParameters)
	if t.MLflow.Enabled {
		text("mlflow_tracking_uri", t.MLflow.TrackingURI)
		text("mlflow_experiment_name", experiment(s))
	}
	if t.Prometheus.Enabled {
		dst = append(dst, "  prometheus_port: \""...)
		dst = scalar.AppendInt(dst, t.Prometheus.Port)
		dst = append(dst, "\"\n"...)
		text("prometheus_path", t.Prometheus.Path)
	}
	return dst
}

// first gives the first exporter that has an endpoint.
func first(exporters []identity.Exporter) *identity.Exporter {
	for i := range exporters {
		if exporters[i].Type != "console" {
			return &exporters[i]
		}
	}
	return nil
}

// serviceName is the attribute if set, else the workload's name.
func serviceName(s *identity.Settings) string {
	for i := range s.Trace.Attributes {
		if s.Trace.Attributes[i].Name == "service.name" {
			return s.Trace.Attributes[i].Value
		}
	}
	return s.Subject.Name
}

func experiment(s *identity.Settings) string {
	if s.Trace.MLflow.ExperimentName != "" {
		return s.Trace.MLflow.ExperimentName
	}
	return s.Subject.Name
}

// rate is the share of traces that the sampler keeps.
func rate(t *identity.Trace) string {
	switch {
	case t.SamplerType == "always_off":
		return "0"
	case t.SamplerType == "always_on" || t.SamplerRate == "":
		return "1"
	}
	return t.SamplerRate
}

// appendAttributeList appends what OTEL_RESOURCE_ATTRIBUTES takes: key=value
// pairs with commas between, percent-encoded as the W3C baggage they are.
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

// appendOTelConfig writes the tracing part of an OpenTelemetry configuration,
// format 1.0, as a block of the ConfigMap.
func appendOTelConfig(dst []byte, s *identity.Settings) []byte {
	text := func(text string) { dst = append(dst, text...) }
	attribute := func(name, value string) {
		dst = scalar.AppendOTel(append(dst, "      - name: "...), name)
		dst = append(scalar.AppendOTel(append(dst, "\n        value: "...), value), '\n')
	}
	text("    file_format: \"1.0\"\n    resource:\n      attributes:\n      - name: service.name\n        value: ")
	dst = append(scalar.AppendOTel(dst, serviceName(s)), '\n')
	for _, a := range s.Trace.Attributes {
		if a.Name != "service.name" {
			attribute(a.Name, a.Value)
		}
	}
	text(`    propagator:
      composite:
      - tracecontext:
      - baggage:
    tracer_provider:
`)
	if len(s.Trace.Exporters) == 0 {
		text("      processors: []\n")
	} else {
		text("      processors:\n")
	}
	for i := range s.Trace.Exporters {
		e := &s.Trace.Exporters[i]
		if e.Type == "console" {
			text("      - simple:\n          exporter:\n            console: {}\n")
			continue
		}
		text("      - batch:\n          exporter:\n")
		if e.Protocol == "grpc" {
			text("            otlp_grpc:\n")
		} else {
			text("            otlp_http:\n")
		}
		text("              endpoint: ")
		dst = appendEndpoint(dst, e)
		if e.Protocol == "http/json" {
			text("              encoding: json\n")
		}
		text("              compression: " + e.Compression + "\n")
		if e.Protocol == "grpc" && e.Insecure {
			text("              tls:\n                insecure: true\n")
		}
	}
	text("      sampler:\n")
	switch s.Trace.SamplerType {
	case "always_off":
		text("        always_off: {}\n")
	case "probabilistic":
		text("        trace_id_ratio_based:\n          ratio: " + rate(&s.Trace) + "\n")
	case "parentbased_probabilistic":
		text("        parent_based:\n          root:\n            trace_id_ratio_based:\n              ratio: " + rate(&s.Trace) + "\n")
	default:
		text("        always_on: {}\n")
	}
	return dst
}

// appendEndpoint appends the exporter's endpoint as the URL that the format
// requires, with the path of OTLP over HTTP.
func appendEndpoint(dst []byte, e *identity.Exporter) []byte {
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
	return append(scalar.AppendOTel(dst, scheme+"://"+rest), '\n')
}

// otlpPort replaces the ports of Jaeger's own protocols, for which
// OpenTelemetry has no exporter, by those on which Jaeger takes OTLP.
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
