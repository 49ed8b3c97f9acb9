package identity

import (
	"strconv"
	"strings"
)

// setting is a value that can be set: a row of the table, which merging, annotations,
// `explain`, and the tests of docs/configuration.md and docs/reference read.
type setting struct {
	// path is the field below a TokenExchange's spec. For tracing it is "trace." and
	// the field below an AgentTrace's spec; what begins with "components." or
	// "authbridge." is the RenderConfig's alone.
	path string
	// annotation sets it for one workload. It has no prefix here.
	annotation string
	also       otherFields

	// at is where it is kept: a *bool, *int, *string, *[]int or *[]string. A value of
	// another type is a list.
	at   func(*Settings) any
	list list

	// standard is the default, unless the profile has another one.
	standard any
	// oneOf are all values that it can have. text and number check a value, or each
	// item of a list; a text without a check of its own fits on one line.
	oneOf  []string
	text   func(c *Checker, field, value string)
	number func(c *Checker, field string, value int)
	// then completes a new value.
	then func(*Settings)
	// derived says that nobody has set it, and that it follows from other settings.
	derived func(*Settings) *bool

	// shown and means are the default, if that is not the standard, and the sentence
	// of docs/reference/configuration.md, if there is more to say than the name does.
	shown, means string
}

// otherFields are fields beside its path that decide a setting.
type otherFields struct {
	// runtime is the field below an AgentRuntime's spec.
	runtime string
	// alias sets it where its own field does not, and the presence of follows decides it.
	alias   string
	follows []string
}

// list is how a list that is not of numbers or strings is merged and explained.
type list struct {
	merge func(c *Checker, s *Settings, field string, value any)
	each  func(*Settings) []Setting
}

const components = "components."

// componentSettings are those of a sidecar, whose defaults are the profile's.
func componentSettings(name string) []setting {
	at := components + name + "."
	component := func(part func(*Component) any) func(*Settings) any {
		return func(s *Settings) any { return part(s.Component(name)) }
	}
	return []setting{
		{path: at + "enabled", annotation: name,
			at: component(func(c *Component) any { return &c.Enabled })},
		{path: at + "image", annotation: name + "-image",
			at: component(func(c *Component) any { return &c.Image }), text: checkImage},
		{path: at + "imagePullPolicy", annotation: name + "-image-pull-policy",
			at:    component(func(c *Component) any { return &c.ImagePullPolicy }),
			oneOf: []string{"Always", "IfNotPresent", "Never"}},
		{path: at + "resources.requests.cpu", annotation: name + "-cpu-request",
			at: component(func(c *Component) any { return &c.CPURequest }), text: checkQuantity},
		{path: at + "resources.requests.memory", annotation: name + "-memory-request",
			at: component(func(c *Component) any { return &c.MemoryRequest }), text: checkQuantity},
		{path: at + "resources.limits.cpu", annotation: name + "-cpu-limit",
			at: component(func(c *Component) any { return &c.CPULimit }), text: checkQuantity},
		{path: at + "resources.limits.memory", annotation: name + "-memory-limit",
			at: component(func(c *Component) any { return &c.MemoryLimit }), text: checkQuantity},
	}
}

var bridgeSettings = []setting{
	{path: BridgeMode, annotation: "authbridge-mode", also: otherFields{runtime: "authBridgeMode"},
		at: func(s *Settings) any { return &s.AuthBridge.Mode }, standard: ModeProxySidecar,
		oneOf: []string{ModeProxySidecar, ModeLite, ModeEnvoySidecar},
		means: "`proxy-sidecar`, `lite` or `envoy-sidecar`: see [AuthBridge](authbridge.md)"},
	{path: "authbridge.clientAuth", at: func(s *Settings) any { return &s.AuthBridge.ClientAuth },
		standard: FederatedJWT, oneOf: []string{FederatedJWT, ClientSecret},
		means: "`federated-jwt`: the workload authenticates to Keycloak with its JWT SVID. " +
			"`client-secret`: it uses a Secret that Kagenti's operator writes, as a workload " +
			"without SPIFFE always does"},
	{path: "authbridge.mtls", also: otherFields{runtime: "mtlsMode"},
		at:    func(s *Settings) any { return &s.AuthBridge.MTLS },
		oneOf: []string{"disabled", "permissive", "strict"},
		shown: "`permissive` with SPIFFE, in `proxy-sidecar` and `lite`; otherwise `disabled`",
		means: "`strict`: accepts and starts only TLS, which HTTP probes and other plain " +
			"HTTP fail. `permissive`: accepts plain connections as well, and never starts TLS"},
	{path: "authbridge.allowedAudiences", also: otherFields{runtime: "identity.allowedAudiences"},
		at: func(s *Settings) any { return &s.AuthBridge.AllowedAudiences }},
	{path: "authbridge.secret", annotation: ClientSecretName,
		at: func(s *Settings) any { return &s.AuthBridge.Secret }, text: checkSecretName},
}

var identitySettings = []setting{
	{path: "spiffe.enabled", at: func(s *Settings) any { return &s.SPIFFE.Enabled },
		standard: true},
	{path: "spiffe.trustDomain", also: otherFields{runtime: "identity.spiffe.trustDomain"},
		at: func(s *Settings) any { return &s.SPIFFE.TrustDomain }, standard: "cluster.local",
		text: checkTrustDomain},
	{path: "spiffe.socketPath", at: func(s *Settings) any { return &s.SPIFFE.SocketPath },
		standard: "/run/spire/agent-sockets/agent.sock", text: checkSocket,
		then: func(s *Settings) {
			s.SPIFFE.SocketPath = strings.TrimPrefix(s.SPIFFE.SocketPath, "unix://")
		},
		means: "the Workload API's socket, as a path or `unix://` URL"},
	{path: "spiffe.socketVolume", at: func(s *Settings) any { return &s.SPIFFE.SocketVolume },
		standard: "csi", oneOf: []string{"csi", "hostPath"},
		means: "`csi`: the SPIFFE CSI driver. `hostPath`: the directory on the node"},
	{path: "spiffe.outputFormat", at: func(s *Settings) any { return &s.SPIFFE.OutputFormat },
		standard: "jwt", oneOf: []string{"jwt", "x509"},
		means: "`x509` writes `svid.pem`, `svid_key.pem` and `svid_bundle.pem` as well"},
	{path: "spiffe.audience", at: func(s *Settings) any { return &s.SPIFFE.Audience },
		standard: "kagenti-agents", means: "the JWT SVID's audience"},

	{path: "clientRegistration.enabled",
		at: func(s *Settings) any { return &s.Registration.Enabled }, standard: true},
	{path: "clientRegistration.provider",
		at: func(s *Settings) any { return &s.Registration.Provider }, standard: "keycloak",
		oneOf: []string{"keycloak", "aws", "gcp"},
		also: otherFields{follows: []string{
			"clientRegistration.gcp", "clientRegistration.aws", "clientRegistration.keycloak"}},
		means: "`keycloak`, `aws` or `gcp`. If only one of these blocks is set, it is the default"},
	{path: "clientRegistration.keycloak.url",
		at:       func(s *Settings) any { return &s.Registration.URL },
		standard: "http://keycloak.kagenti-system.svc:8080", text: checkURL,
		means: "as reached from the pod"},
	{path: "clientRegistration.keycloak.realm",
		at: func(s *Settings) any { return &s.Registration.Realm }, standard: "default",
		text: checkRealm},
	{path: "clientRegistration.keycloak.adminCredentialsSecret",
		at:       func(s *Settings) any { return &s.Registration.AdminSecret },
		standard: "keycloak-admin-secret", text: checkSecretName,
		means: "the Secret with `KEYCLOAK_ADMIN_USERNAME` and `KEYCLOAK_ADMIN_PASSWORD`"},
	{path: "clientRegistration.keycloak.clientNameTemplate",
		at:       func(s *Settings) any { return &s.Registration.ClientName },
		standard: "{{.PodNamespace}}/{{.WorkloadName}}", text: checkClientName,
		means: "can also use `{{.PodName}}`, `{{.PodIP}}`, `{{.NodeName}}`, `{{.ServiceAccount}}`, " +
			"`{{.WorkloadKind}}`"},
	{path: "clientRegistration.keycloak.tokenExchangeEnabled",
		at: func(s *Settings) any { return &s.Registration.TokenExchange }, standard: true},
	{path: "clientRegistration.aws.roleArn",
		at: func(s *Settings) any { return &s.Registration.AWS.RoleARN }, text: checkRoleARN,
		shown: "required", means: "the IAM role"},
	{path: "clientRegistration.aws.region",
		at: func(s *Settings) any { return &s.Registration.AWS.Region }, shown: "required"},
	{path: "clientRegistration.aws.sessionName",
		at:    func(s *Settings) any { return &s.Registration.AWS.SessionName },
		shown: "the workload's name"},
	{path: "clientRegistration.aws.audience",
		at:       func(s *Settings) any { return &s.Registration.AWS.Audience },
		standard: "sts.amazonaws.com", means: "audience of a separate JWT SVID"},
	{path: "clientRegistration.aws.stsEndpoint",
		at: func(s *Settings) any { return &s.Registration.AWS.STSEndpoint }, text: checkURL,
		shown: "AWS's"},
	{path: "clientRegistration.gcp.workloadIdentityProvider",
		at:   func(s *Settings) any { return &s.Registration.GCP.ProviderResource },
		text: checkGCPProvider, then: completeProvider, shown: "required",
		means: "the provider's full resource name"},
	{path: "clientRegistration.gcp.serviceAccountEmail",
		at: func(s *Settings) any { return &s.Registration.GCP.ServiceAccountEmail }, shown: "none",
		means: "the service account to act as"},
	{path: "clientRegistration.gcp.projectId",
		at: func(s *Settings) any { return &s.Registration.GCP.ProjectID }, shown: "none",
		means: "the project that quota is charged to"},
	{path: "clientRegistration.gcp.audience",
		at: func(s *Settings) any { return &s.Registration.GCP.Audience }, shown: "the provider",
		means: "audience of a separate JWT SVID"},

	{path: "inbound.enabled", at: func(s *Settings) any { return &s.Inbound.Enabled },
		standard: true},
	{path: ReversePort, annotation: InboundPort,
		at: func(s *Settings) any { return &s.Inbound.Port }, standard: 8080, number: checkPort,
		means: "where auth-proxy listens"},
	{path: AgentPort, annotation: TargetPort,
		at: func(s *Settings) any { return &s.Inbound.TargetPort }, standard: 8081,
		number: checkPort, means: "where the agent listens"},
	{path: "inbound.validation.enabled", at: func(s *Settings) any { return &s.Inbound.Validate },
		standard: true},
	{path: "inbound.validation.issuer", also: otherFields{alias: "tokenExchange.issuer"},
		at: func(s *Settings) any { return &s.Inbound.Issuer }, text: checkURL,
		derived: func(s *Settings) *bool { return &s.Derived.Issuer }, shown: "the realm",
		means: "also `tokenExchange.issuer`. Set without `jwksUrl`, it leaves `jwksUrl` at " +
			"Keycloak's realm, with a warning"},
	{path: "inbound.validation.jwksUrl", at: func(s *Settings) any { return &s.Inbound.JWKSURL },
		text: checkURL, derived: func(s *Settings) *bool { return &s.Derived.JWKS },
		shown: "the realm's",
		means: "as reached from the pod. Set without `issuer`, it leaves `issuer` at the " +
			"realm, with a warning"},
	{path: "inbound.validation.audience", at: func(s *Settings) any { return &s.Inbound.Audience },
		standard: "self",
		means: "`self`: the workload's SPIFFE ID, or its client name without SPIFFE. `any`: " +
			"not checked"},
	{path: "inbound.validation.requiredScopes",
		at: func(s *Settings) any { return &s.Inbound.RequiredScopes }, text: checkScope,
		shown: "none", means: "scopes that a token must have, all of them; Envoy checks them"},
	{path: "inbound.validation.bypassPaths", annotation: InboundBypassPaths,
		at:       func(s *Settings) any { return &s.Inbound.BypassPaths },
		standard: []string{"/.well-known/*", "/healthz", "/readyz", "/livez"},
		text:     checkBypassPath,
		means: "patterns of paths that need no token, where `*` matches anything but a slash. " +
			"Paths of the workload's own HTTP and gRPC probes are added, except `/`"},

	{path: "outbound.enabled", at: func(s *Settings) any { return &s.Outbound.Enabled },
		standard: true},
	{path: Interception + "enabled", also: otherFields{runtime: "egressEnforcement"},
		at: func(s *Settings) any { return &s.Outbound.Intercept }, standard: true},
	{path: Interception + "proxyPort", annotation: ProxyPort,
		at: func(s *Settings) any { return &s.Outbound.ProxyPort }, standard: 15123,
		number: checkPort},
	{path: Interception + "inboundProxyPort", annotation: InboundProxyPort,
		at: func(s *Settings) any { return &s.Outbound.InboundProxyPort }, standard: 15124,
		number: checkPort},
	{path: Interception + "proxyUid", annotation: "proxy-uid",
		at: func(s *Settings) any { return &s.Outbound.ProxyUID }, standard: DefaultProxyUID,
		number: checkUID},
	{path: Interception + "excludePorts", annotation: "outbound-ports-exclude",
		at: func(s *Settings) any { return &s.Outbound.ExcludePorts }, standard: []int{8080},
		number: checkPort, means: "outbound ports that bypass Envoy; Keycloak's always does"},
	{path: Interception + "excludeInboundPorts", annotation: "inbound-ports-exclude",
		at: func(s *Settings) any { return &s.Outbound.ExcludeInboundPorts }, number: checkPort,
		shown: "none", means: "inbound ports that bypass Envoy"},
	{path: "outbound.noProxy", annotation: "outbound-no-proxy",
		at: func(s *Settings) any { return &s.Outbound.NoProxy }, text: checkNoProxy, shown: "none",
		means: "hosts that the agent calls past AuthBridge's forward proxy, added to its " +
			"`NO_PROXY`: `api.example.com`, `.svc`, `10.0.0.0/8`"},
	{path: "outbound.tokenExchange.enabled",
		at: func(s *Settings) any { return &s.Outbound.TokenExchange }, standard: true},
	{path: "outbound.tokenExchange.tokenUrl",
		at: func(s *Settings) any { return &s.Outbound.TokenURL }, text: checkURL,
		derived: func(s *Settings) *bool { return &s.Derived.TokenURL }, shown: "the realm's"},
	{path: "outbound.tokenExchange.defaultTarget.audience",
		at:       func(s *Settings) any { return &s.Outbound.Default.Audience },
		standard: "downstream-service", means: "audience of the new token if no rule matches"},
	{path: "outbound.tokenExchange.defaultTarget.scopes",
		at:       func(s *Settings) any { return &s.Outbound.Default.Scopes },
		standard: []string{"openid"}, text: checkScope,
		means: "scopes of the new token if no rule matches"},
	{path: "outbound.tokenExchange.destinationRules", list: list{merge: mergeRules, each: eachRule},
		shown: "none",
		means: "`match.host` (`*` within a label, `**` across), `target`, `tokenUrl`, " +
			"`passthrough`; the first match wins"},
}

var traceSettings = []setting{
	{path: traced, also: otherFields{follows: []string{"trace", "trace.targetRef"}},
		at:    func(s *Settings) any { return &s.Trace.Enabled },
		shown: "`true` with an AgentTrace, or with any field of `spec.trace`",
		means: "`false`: nothing about traces is rendered"},
	{path: "trace.exporters", list: list{merge: mergeExporters, each: allExporters},
		at: func(s *Settings) any { return &s.Trace.Exporters },
		standard: []Exporter{{Type: "otlp", Endpoint: "otel-collector.observability:4317",
			Protocol: "grpc", Compression: "none", Insecure: true}},
		shown: "one: OTLP, gRPC, `otel-collector.observability:4317`",
		means: "`type` (`otlp`, `jaeger`, `console`), `endpoint`, " +
			"`protocol` (`grpc`, `http/protobuf`, `http/json`), `compression` (`none`, " +
			"`gzip`), `insecure`"},
	{path: "trace.sampling.type", also: otherFields{follows: []string{"trace.sampling.rate"}},
		at: func(s *Settings) any { return &s.Trace.SamplerType }, standard: "always_on",
		oneOf: []string{"always_on", "always_off", "probabilistic", "parentbased_probabilistic"},
		means: "`always_on`, `always_off`, `probabilistic`, `parentbased_probabilistic`"},
	{path: "trace.sampling.rate", at: func(s *Settings) any { return &s.Trace.SamplerRate },
		text: checkRate, then: completeRate, means: "0 to 1"},
	{path: "trace.genai.enabled", at: func(s *Settings) any { return &s.Trace.GenAI.Enabled },
		standard: false},
	{path: "trace.genai.capturePrompts",
		at: func(s *Settings) any { return &s.Trace.GenAI.Prompts }, standard: false,
		means: "with `genai.enabled`"},
	{path: "trace.genai.captureCompletions",
		at: func(s *Settings) any { return &s.Trace.GenAI.Completions }, standard: false,
		means: "with `genai.enabled`"},
	{path: "trace.genai.captureModelParameters",
		at: func(s *Settings) any { return &s.Trace.GenAI.ModelParameters }, standard: false,
		means: "with `genai.enabled`"},
	{path: "trace.resourceAttributes", list: list{merge: mergeAttributes, each: eachAttribute},
		shown: "`service.name`: the workload's name", means: "merged by key"},
	{path: "trace.integration.mlflow.enabled",
		at: func(s *Settings) any { return &s.Trace.MLflow.Enabled }, standard: false},
	{path: "trace.integration.mlflow.trackingUri",
		at: func(s *Settings) any { return &s.Trace.MLflow.TrackingURI }, text: checkURL,
		shown: "required"},
	{path: "trace.integration.mlflow.experimentName",
		at:    func(s *Settings) any { return &s.Trace.MLflow.ExperimentName },
		shown: "the workload's name"},
	{path: "trace.integration.prometheus.enabled",
		at: func(s *Settings) any { return &s.Trace.Prometheus.Enabled }, standard: false},
	{path: metricsPort, at: func(s *Settings) any { return &s.Trace.Prometheus.Port },
		standard: 9090, number: checkPort, means: "Envoy's token processor uses 9090: set another"},
	{path: "trace.integration.prometheus.path",
		at: func(s *Settings) any { return &s.Trace.Prometheus.Path }, standard: "/metrics",
		text: checkPath},
}

// Paths and annotations that findings name.
const (
	ReversePort  = "inbound.port" // where requests for the agent arrive
	AgentPort    = "inbound.targetPort"
	Interception = "outbound.trafficInterception."
	BridgeMode   = "authbridge.mode"
	traced       = "trace.enabled"
	metricsPort  = "trace.integration.prometheus.port"

	InboundPort        = "inbound-port"
	TargetPort         = "target-port"
	ProxyPort          = "proxy-port"
	InboundProxyPort   = "inbound-proxy-port"
	ClientSecretName   = "keycloak-client-credentials-secret-name"
	InboundBypassPaths = "inbound-bypass-paths"
)

const googleIAM = "//iam.googleapis.com/"

// completeProvider sets a workload identity provider to its full resource name, which
// is the audience too unless that is set.
func completeProvider(s *Settings) {
	g := &s.Registration.GCP
	g.ProviderResource = googleIAM +
		strings.TrimPrefix(strings.TrimPrefix(g.ProviderResource, "https:"),
			googleIAM)
	g.Audience = g.ProviderResource
}

// completeRate writes the share of traces in a notation that every YAML reader takes
// for a number.
func completeRate(s *Settings) {
	f, _ := strconv.ParseFloat(s.Trace.SamplerRate, 64)
	s.Trace.SamplerRate = strconv.FormatFloat(f, 'f', -1, 64)
}
