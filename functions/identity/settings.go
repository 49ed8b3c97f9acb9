// Package identity computes the effective identity settings of a workload,
// once, for every function that needs them: defaults < RenderConfig <
// TokenExchange and AgentTrace < the workload's annotations. Ports, users,
// exclusions and components can therefore never disagree between the pod and
// its ConfigMaps.
package identity

import "strings"

// Settings is what one workload gets. It holds no maps, so that copying the
// base for each of 10,000 workloads allocates nothing.
type Settings struct {
	Subject Subject
	Profile *Profile
	// Prefix is the label and annotation prefix, "kagenti.io" by default.
	Prefix string

	// Components are those of the profile's sidecars, in their order.
	Components [MaxSidecars]Component

	SPIFFE       SPIFFE
	Registration Registration
	Inbound      Inbound
	Outbound     Outbound
	Trace        Trace
	// AuthBridge is what the profile authbridge adds.
	AuthBridge AuthBridge

	// TraceOnly says that the workload does not opt in and has an AgentTrace: it
	// gets the tracing settings and no sidecar.
	TraceOnly bool

	Declared Declared

	// Derived says which URLs follow from the realm, because nobody set them.
	Derived Derived

	// shape is what the workload shares with others, nil for one with settings of its own.
	shape *shape
}

// Subject is the workload that settings are of.
type Subject struct {
	// Namespace is empty where the author wrote none.
	Kind, Namespace, Name string
	// ServiceAccount is the pod's, and OwnAccount says that the author names none, so
	// that it gets one of its own.
	ServiceAccount string
	OwnAccount     bool
}

// Declared is what the author declares in the pod template.
type Declared struct {
	// ProbePaths are the HTTP paths of the workload's own containers that the kubelet
	// asks the proxy for. Those that OpenProbe lets through need no token.
	ProbePaths []string
	// Volumes are those that the sidecars use.
	Volumes Volumes
}

// Derived are URLs that nobody has set.
type Derived struct{ Issuer, JWKS, TokenURL bool }

// Volumes says which volumes of their published names the author declares as the
// emptyDirs that they are. An application that mounts them finds in them what the
// sidecars write.
type Volumes struct {
	// Shared is shared-data, and SVID svid-output.
	Shared, SVID bool
}

// Component is one of the injected containers.
type Component struct {
	// Enabled says whether the workload gets it.
	Enabled         bool
	Image           string
	ImagePullPolicy string
	// Resources in Kubernetes quantities; an empty string leaves the entry out.
	CPURequest, MemoryRequest, CPULimit, MemoryLimit string
}

// SPIFFE is what spiffe-helper and the socket volume need.
type SPIFFE struct {
	Enabled     bool
	TrustDomain string
	// SocketPath is a plain path, without the unix:// scheme.
	SocketPath string
	// SocketVolume is "csi" or "hostPath".
	SocketVolume string
	// OutputFormat is "jwt" or "x509". With x509 the JWT SVID is written too.
	OutputFormat string
	// Audience is the JWT SVID's audience.
	Audience string
	// TokenDir is where spiffe-helper writes: "/shared" in 001, "/opt" in what
	// was published.
	TokenDir string
	// HealthPort is where spiffe-helper answers the startup probe.
	HealthPort int
}

// Registration is what client-registration needs.
type Registration struct {
	Enabled bool
	// Provider is "keycloak", "aws" or "gcp".
	Provider string
	// URL and Realm locate Keycloak. Port is the URL's, given or implied.
	URL, Realm string
	Port       int
	// AdminSecret names the Secret that holds KEYCLOAK_ADMIN_USERNAME and
	// KEYCLOAK_ADMIN_PASSWORD. It is referenced, never read.
	AdminSecret string
	// ClientName is a template as api.KeycloakSpec describes it.
	ClientName string
	// TokenExchange asks the provider to allow token exchange for the client.
	TokenExchange bool

	AWS AWS
	GCP GCP
}

// AWS is web identity federation with AWS IAM.
type AWS struct {
	// SessionName is empty for the workload's name.
	RoleARN, Region, SessionName, Audience, STSEndpoint string
}

// GCP is Workload Identity Federation.
type GCP struct {
	// ProviderResource is //iam.googleapis.com/projects/…/providers/….
	ProviderResource, ServiceAccountEmail, ProjectID string
	// Audience is the JWT SVID's for Google.
	Audience string
}

// Inbound is what auth-proxy needs.
type Inbound struct {
	Enabled bool
	// Port is where auth-proxy listens, TargetPort where the agent does.
	Port, TargetPort int
	// Validate says whether tokens are checked at all.
	Validate        bool
	Issuer, JWKSURL string
	// Audience is "self", "any" or an audience.
	Audience       string
	RequiredScopes []string
	// BypassPaths need no token.
	BypassPaths []string
}

// Outbound is what proxy-init and envoy-proxy need.
type Outbound struct {
	Enabled bool
	// Intercept says whether iptables send outbound traffic through Envoy.
	Intercept bool
	// ProxyPort and InboundProxyPort are Envoy's listeners, ProxyUID its user.
	ProxyPort, InboundProxyPort, ProxyUID int
	// ExcludePorts leave the pod directly; ExcludeInboundPorts enter it so.
	ExcludePorts, ExcludeInboundPorts []int
	// NoProxy are hosts that applications call past AuthBridge's forward proxy.
	NoProxy []string
	// TokenExchange says whether tokens are exchanged on the way out.
	TokenExchange bool
	TokenURL      string
	Default       Target
	Rules         []Rule
}

// Target is what a token is exchanged for.
type Target struct {
	Audience string
	Scopes   []string
}

// Rule is a target for the destinations whose host matches a glob.
type Rule struct {
	Host string
	// TokenURL overrides Outbound.TokenURL; Passthrough leaves the token alone.
	TokenURL    string
	Passthrough bool
	Target      Target
}

// Trace is what the application reads below /etc/kagenti/trace.
type Trace struct {
	// Enabled is false where nothing about traces is rendered; all else is empty then.
	Enabled   bool
	Exporters []Exporter
	// SamplerType is "always_on", "always_off", "probabilistic" or "parentbased_probabilistic".
	SamplerType string
	// SamplerRate is a decimal fraction as the author wrote it: "0.1".
	SamplerRate string
	GenAI       GenAI
	Attributes  []Attribute
	MLflow      MLflow
	Prometheus  Prometheus
}

// Exporter sends spans somewhere.
type Exporter struct {
	// Type is "otlp", "jaeger" or "console".
	Type string
	// Endpoint is host:port or a URL, as its author wrote it.
	Endpoint string
	// Protocol is "grpc", "http/protobuf" or "http/json".
	Protocol string
	// Compression is "none" or "gzip".
	Compression string
	// Insecure leaves TLS out.
	Insecure bool
}

// GenAI switches what the GenAI semantic conventions capture.
type GenAI struct {
	Enabled, Prompts, Completions, ModelParameters bool
}

// Attribute is one OpenTelemetry resource attribute.
type Attribute struct{ Name, Value string }

// MLflow is the integration with an MLflow tracking server. ExperimentName is
// empty for the workload's name.
type MLflow struct {
	Enabled                     bool
	TrackingURI, ExperimentName string
}

// Prometheus is the metrics endpoint of the agent.
type Prometheus struct {
	Enabled bool
	Port    int
	Path    string
}

// AuthBridge is what the profile authbridge adds to the settings. Inbound.Port is where
// the agent's requests arrive, and Inbound.TargetPort where the agent listens; 0
// leaves them to the workload's own ports.
type AuthBridge struct {
	// Mode is one of the modes.
	Mode string
	// ClientAuth is FederatedJWT or ClientSecret.
	ClientAuth string
	// MTLS is "disabled", "permissive" or "strict"; empty until it is settled.
	MTLS string
	// AllowedAudiences are those of inbound tokens beside Inbound.Audience.
	AllowedAudiences []string
	// Secret names the Secret with client-id.txt and client-secret.txt. It is empty
	// for FederatedJWT.
	Secret string
	// Ports are the TCP ports that the author's containers declare, and EnvPort is the value of the
	// author's variable PORT, 0 for none.
	Ports   []int
	EnvPort int
	// ForwardPort is where the agent sends its requests, 0 where nothing listens.
	ForwardPort int
	// Moved reports whether nobody has set the agent's port, which the reverse proxy takes.
	Moved bool
}

// Modes of AuthBridge.
const (
	ModeProxySidecar = "proxy-sidecar"
	ModeLite         = "lite"
	ModeEnvoySidecar = "envoy-sidecar"
)

// How the proxy proves to Keycloak which client it is.
const (
	FederatedJWT = "federated-jwt"
	ClientSecret = "client-secret"
)

// SelfAudience reports whether inbound tokens are for the workload's own
// identity.
func (s *Settings) SelfAudience() bool { return s.Inbound.Audience == "self" }

// ValidatesInbound reports whether a proxy refuses inbound requests without a
// good token, those of the kubelet included.
func (s *Settings) ValidatesInbound() bool {
	return s.any(func(x *Sidecar) bool { return x.Guards }) && s.Inbound.Enabled && s.Inbound.Validate
}

// HasSidecars reports whether any sidecar of the profile is on.
func (s *Settings) HasSidecars() bool {
	return s.any(func(*Sidecar) bool { return true })
}

// any reports whether the workload gets a sidecar of a kind.
func (s *Settings) any(is func(*Sidecar) bool) bool {
	for i := range s.Profile.Sidecars {
		if s.Components[i].Enabled && is(&s.Profile.Sidecars[i]) {
			return true
		}
	}
	return false
}

// OpenProbe returns the path of a probe that may pass without a token. The root
// may not: it is where agents take their requests. Neither may what would be
// read as a pattern or as two paths.
func OpenProbe(path string) (string, bool) {
	if i := strings.IndexByte(path, '?'); i >= 0 {
		path = path[:i]
	}
	if len(path) < 2 || path[0] != '/' || strings.ContainsAny(path, `*[\,`) {
		return "", false
	}
	return path, true
}
