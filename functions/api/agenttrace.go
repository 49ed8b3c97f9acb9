package api

import "encoding/json"

// AgentTrace configures the telemetry of an agent's own code: 001, "Pillar 3:
// AgentTrace CR". Without one, and without trace in the RenderConfig, nothing is rendered.
type AgentTrace = Resource[AgentTraceSpec]

// AgentTraceSpec is TraceSpec for one workload.
type AgentTraceSpec struct {
	// TargetRef names the workload. Required.
	TargetRef TargetRef `json:"targetRef"`

	TraceSpec `json:",inline"`
}

// TraceSpec is what AgentTrace says for one workload and RenderConfig for all
// of them.
type TraceSpec struct {
	// Enabled says whether tracing settings are rendered. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// Exporters get every span. Default: one OTLP exporter over gRPC to
	// otel-collector.observability:4317, as in 001's sample code. A list in an
	// AgentTrace replaces that of RenderConfig.
	Exporters []ExporterSpec `json:"exporters,omitempty"`
	// Sampling says which traces are kept. Default: always_on.
	Sampling *struct {
		// Type is "always_on" (the default), "always_off", "probabilistic" or
		// "parentbased_probabilistic". Omitted with a rate, it is probabilistic.
		Type *string `json:"type,omitempty"`
		// Rate is the share of traces to keep, 0 to 1. Required with the
		// probabilistic types.
		Rate *json.Number `json:"rate,omitempty"`
	} `json:"sampling,omitempty"`
	// GenAI switches what is captured of prompts and completions. Default: off.
	GenAI *struct {
		// Enabled records GenAI spans. Default false.
		Enabled *bool `json:"enabled,omitempty"`
		// CapturePrompts records what was asked. Default false.
		CapturePrompts *bool `json:"capturePrompts,omitempty"`
		// CaptureCompletions records what was answered. Default false.
		CaptureCompletions *bool `json:"captureCompletions,omitempty"`
		// CaptureModelParameters records temperature and the like. Default false.
		CaptureModelParameters *bool `json:"captureModelParameters,omitempty"`
	} `json:"genai,omitempty"`
	// ResourceAttributes go on every span. Default: service.name, the
	// workload's name. They are added to those of RenderConfig.
	ResourceAttributes map[string]string `json:"resourceAttributes,omitempty"`
	// Integration connects observability platforms. Default: none.
	Integration *struct {
		// MLflow is an MLflow tracking server.
		MLflow *struct {
			// Enabled is false by default.
			Enabled *bool `json:"enabled,omitempty"`
			// TrackingURI is the server's URL. Required when enabled.
			TrackingURI *string `json:"trackingUri,omitempty"`
			// ExperimentName groups runs. Default: the workload's name.
			ExperimentName *string `json:"experimentName,omitempty"`
		} `json:"mlflow,omitempty"`
		// Prometheus is the agent's own metrics endpoint.
		Prometheus *struct {
			// Enabled is false by default.
			Enabled *bool `json:"enabled,omitempty"`
			// Port is where the agent serves metrics. Default 9090.
			Port *int `json:"port,omitempty"`
			// Path is where on that port. Default "/metrics".
			Path *string `json:"path,omitempty"`
		} `json:"prometheus,omitempty"`
	} `json:"integration,omitempty"`
}

// ExporterSpec sends spans somewhere.
type ExporterSpec struct {
	// Type is "otlp", "jaeger" (which takes OTLP too, and is sent OTLP) or
	// "console". Required.
	Type string `json:"type"`
	// Endpoint is host:port or a URL. Required unless type is console.
	Endpoint *string `json:"endpoint,omitempty"`
	// Protocol is "grpc" (the default), "http/protobuf" or "http/json".
	Protocol *string `json:"protocol,omitempty"`
	// Compression is "none" (the default) or "gzip".
	Compression *string `json:"compression,omitempty"`
	// Insecure leaves TLS out. Default: true for an endpoint without a scheme,
	// as in 001's sample code; the scheme decides where there is one.
	Insecure *bool `json:"insecure,omitempty"`
}

// AgentTraceStatus is observed by a controller and ignored by rendering.
type AgentTraceStatus struct {
	Phase              string      `json:"phase,omitempty"`
	Message            string      `json:"message,omitempty"`
	ConfigMapName      string      `json:"configMapName,omitempty"`
	ObservedGeneration int64       `json:"observedGeneration,omitempty"`
	Conditions         []Condition `json:"conditions,omitempty"`
}
