// Package identity computes the effective identity settings of a workload once for every function
// that needs them: defaults < RenderConfig < TokenExchange and AgentTrace < the workload's
// annotations. Ports, users, exclusions and components can therefore never disagree between the pod
// and its ConfigMaps.
package identity

import "strings"

// Settings are the effective settings of one workload. They hold no maps, so that copying the base
// for each of 10,000 workloads allocates nothing.
type Settings struct {
	Subject Subject
	Profile *Profile
	// Prefix is the label and annotation prefix, "kagenti.io" by default.
	Prefix string

	// Components are the components of the profile's sidecars, in their order.
	Components [MaxSidecars]Component

	SPIFFE       SPIFFE
	Registration Registration
	Inbound      Inbound
	Outbound     Outbound
	Trace        Trace
	// AuthBridge holds the additional settings of the profile authbridge.
	AuthBridge AuthBridge

	// TraceOnly says that the workload does not opt in and has an AgentTrace: it gets the tracing
	// settings and no sidecar.
	TraceOnly bool

	Declared Declared

	// Derived says which URLs follow from the realm, because they are not set.
	Derived Derived

	// shape is shared with other workloads. It is nil for a workload with settings of its own.
	shape *shape
}

// Subject is the workload of the settings.
type Subject struct {
	// Namespace is empty if the author wrote none.
	Kind, Namespace, Name string
	// ServiceAccount is the pod's, and OwnAccount says that the author names none, so that one is
	// generated.
	ServiceAccount string
	OwnAccount     bool
}

// Declared holds declarations of the author in the pod template.
type Declared struct {
	// ProbePaths are the HTTP paths of the workload's own containers that the kubelet requests from
	// the proxy. Paths that OpenProbe accepts need no token.
	ProbePaths []string
	// Volumes are the volumes that the sidecars use.
	Volumes Volumes
}

// Derived lists the URLs that are not set.
type Derived struct{ Issuer, JWKS, TokenURL bool }

// Volumes says which volumes of the published names the author declares as emptyDirs. An
// application that mounts them can read the files that the sidecars write.
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

// SPIFFE holds the settings of spiffe-helper and the socket volume.
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
	// TokenDir is the directory that spiffe-helper writes to: "/shared" in 001, "/opt" in published
	// manifests.
	TokenDir string
	// HealthPort is the port of spiffe-helper's startup probe.
	HealthPort int
}

// Registration holds the settings of client-registration.
type Registration struct {
	Enabled bool
	// Provider is "keycloak", "aws" or "gcp".
	Provider string
	// URL and Realm locate Keycloak. Port is the port of URL, given or implied.
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

// AWS configures web identity federation with AWS IAM.
type AWS struct {
	// SessionName is the workload's name if it is empty.
	RoleARN, Region, SessionName, Audience, STSEndpoint string
}

// GCP configures Workload Identity Federation.
type GCP struct {
	// ProviderResource is //iam.googleapis.com/projects/…/providers/….
	ProviderResource, ServiceAccountEmail, ProjectID string
	// Audience is the audience of the JWT SVID for Google.
	Audience string
}

// Inbound holds the settings of auth-proxy.
type Inbound struct {
	Enabled bool
	// Port is the port of auth-proxy, TargetPort the port of the agent.
	Port, TargetPort int
	// Validate says whether tokens are checked.
	Validate        bool
	Issuer, JWKSURL string
	// Audience is "self", "any" or an audience.
	Audience       string
	RequiredScopes []string
	// BypassPaths need no token.
	BypassPaths []string
}

// Outbound holds the settings of proxy-init and envoy-proxy.
type Outbound struct {
	Enabled bool
	// Intercept says whether iptables send outbound traffic through Envoy.
	Intercept bool
	// ProxyPort and InboundProxyPort are Envoy's listeners, ProxyUID is its user.
	ProxyPort, InboundProxyPort, ProxyUID int
	// ExcludePorts are not intercepted in outbound traffic, ExcludeInboundPorts in inbound traffic.
	ExcludePorts, ExcludeInboundPorts []int
	// NoProxy lists hosts that applications call without AuthBridge's forward proxy.
	NoProxy []string
	// TokenExchange says whether tokens of outbound requests are exchanged.
	TokenExchange bool
	TokenURL      string
	Default       Target
	Rules         []Rule
}

// Target is the audience and the scopes of an exchanged token.
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

// Trace holds the settings that the application reads below /etc/kagenti/trace.
type Trace struct {
	// Enabled is false if nothing about traces is rendered; the other fields are empty then.
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

// Exporter is a destination of spans.
type Exporter struct {
	// Type is "otlp", "jaeger" or "console".
	Type string
	// Endpoint is host:port or a URL, as its author wrote it.
	Endpoint string
	// Protocol is "grpc", "http/protobuf" or "http/json".
	Protocol string
	// Compression is "none" or "gzip".
	Compression string
	// Insecure disables TLS.
	Insecure bool
}

// GenAI selects the data that the GenAI semantic conventions capture.
type GenAI struct {
	Enabled, Prompts, Completions, ModelParameters bool
}

// Attribute is one OpenTelemetry resource attribute.
type Attribute struct{ Name, Value string }

// MLflow is the integration with an MLflow tracking server. ExperimentName is the workload's name
// if it is empty.
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

// AuthBridge holds the additional settings of the profile authbridge. Inbound.Port is the port for
// the agent's requests, and Inbound.TargetPort the port on which the agent listens; 0 derives them
// from the workload's own ports.
type AuthBridge struct {
	// Mode is one of the modes.
	Mode string
	// ClientAuth is FederatedJWT or ClientSecret.
	ClientAuth string
	// MTLS is "disabled", "permissive" or "strict"; it is empty until it is settled.
	MTLS string
	// AllowedAudiences are audiences of inbound tokens in addition to Inbound.Audience.
	AllowedAudiences []string
	// Secret names the Secret with client-id.txt and client-secret.txt. It is empty for
	// FederatedJWT.
	Secret string
	// Ports are the TCP ports that the author's containers declare, and EnvPort is the value of the
	// author's variable PORT, or 0.
	Ports   []int
	EnvPort int
	// ForwardPort is the port of the forward proxy for the agent's requests, or 0.
	ForwardPort int
	// Moved says that the agent's port is not set and the reverse proxy takes it.
	Moved bool
}

// Modes of AuthBridge.
const (
	ModeProxySidecar = "proxy-sidecar"
	ModeLite         = "lite"
	ModeEnvoySidecar = "envoy-sidecar"
)

// Methods by which the proxy authenticates its client to Keycloak.
const (
	FederatedJWT = "federated-jwt"
	ClientSecret = "client-secret"
)

// SelfAudience reports whether inbound tokens are for the workload's own identity.
func (s *Settings) SelfAudience() bool { return s.Inbound.Audience == "self" }

// ValidatesInbound reports whether a proxy refuses inbound requests without a valid token,
// including the kubelet's.
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

// OpenProbe returns the path of a probe that may pass without a token. The root may not, because
// agents receive their requests there. Neither may a path that would be read as a pattern or as two
// paths.
func OpenProbe(path string) (string, bool) {
	if i := strings.IndexByte(path, '?'); i >= 0 {
		path = path[:i]
	}
	if len(path) < 2 || path[0] != '/' || strings.ContainsAny(path, `*[\,`) {
		return "", false
	}
	return path, true
}
