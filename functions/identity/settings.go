// Package identity computes the effective identity settings of a workload,
// once, for every function that needs them: defaults < RenderConfig <
// TokenExchange and AgentTrace < the workload's annotations. Ports, users,
// exclusions and components can therefore never disagree between the pod and
// its ConfigMaps.
package identity

import "strings"

// Names of the components: five in the order of 001, "Injected Identity
// Infrastructure Components", and the one that takes their place today.
const (
	ProxyInit          = "proxy-init"
	SpiffeHelper       = "spiffe-helper"
	ClientRegistration = "client-registration"
	AuthProxy          = "auth-proxy"
	EnvoyProxy         = "envoy-proxy"
	AuthBridgeProxy    = "authbridge-proxy"
)

// Settings is what one workload gets. It holds no maps, so that copying the
// base for each of 10,000 workloads allocates nothing.
type Settings struct {
	// APIVersion, Kind, Namespace and Name are the workload's. Namespace is
	// empty where the author wrote none.
	APIVersion, Kind, Namespace, Name string
	// ServiceAccount is the pod's serviceAccountName, "default" where unset.
	ServiceAccount string
	// Profile is one of the Profile constants.
	Profile string
	// Prefix is the label and annotation prefix, "kagenti.io" by default.
	Prefix string

	// Common says that no custom resource and no annotation is about the
	// workload: in what the pod gets only the name is its own, and in its
	// ConfigMaps the name, namespace, kind and probe paths are.
	Common bool

	ProxyInit, SpiffeHelper, ClientRegistration, AuthProxy, EnvoyProxy, AuthBridgeProxy Component

	SPIFFE       SPIFFE
	Registration Registration
	Inbound      Inbound
	Outbound     Outbound
	Trace        Trace
	// AuthBridge is what ProfileAuthBridge adds.
	AuthBridge AuthBridge

	// TraceOnly says that the workload does not opt in and has an AgentTrace: it
	// gets the tracing settings and no sidecar.
	TraceOnly bool

	// Volumes are those of the author that the sidecars use.
	Volumes Volumes

	// ProbePaths are the HTTP paths that the kubelet probes in the workload's own
	// containers. Those that OpenProbe lets through need no token.
	ProbePaths []string

	// TokenExchangeFrom and TraceFrom are "file:line" of the CR that was
	// merged, empty where none targets the workload.
	TokenExchangeFrom, TraceFrom string

	// derive says which URLs follow from the realm, because nobody set them.
	derive derivation
}

type derivation struct{ issuer, jwks, tokenURL bool }

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

// Component gives the component of a name, nil for another name.
func (s *Settings) Component(name string) *Component {
	switch name {
	case ProxyInit:
		return &s.ProxyInit
	case SpiffeHelper:
		return &s.SpiffeHelper
	case ClientRegistration:
		return &s.ClientRegistration
	case AuthProxy:
		return &s.AuthProxy
	case EnvoyProxy:
		return &s.EnvoyProxy
	case AuthBridgeProxy:
		return &s.AuthBridgeProxy
	}
	return nil
}

// Components gives the names of all profiles in start order.
func Components() [6]string {
	return [6]string{ProxyInit, SpiffeHelper, ClientRegistration, AuthProxy, EnvoyProxy, AuthBridgeProxy}
}

// Has reports whether the profile has a component at all.
func (s *Settings) Has(component string) bool {
	switch component {
	case SpiffeHelper, ClientRegistration, AuthProxy:
		return s.Profile != ProfileAuthBridge
	case AuthBridgeProxy:
		return s.Profile == ProfileAuthBridge
	}
	return true
}

// SelfAudience reports whether inbound tokens are for the workload's own
// identity.
func (s *Settings) SelfAudience() bool { return s.Inbound.Audience == "self" }

// ValidatesInbound reports whether a proxy refuses inbound requests without a
// good token, those of the kubelet included.
func (s *Settings) ValidatesInbound() bool {
	return (s.EnvoyProxy.Enabled || s.AuthBridgeProxy.Enabled) && s.Inbound.Enabled && s.Inbound.Validate
}

// OpenProbe gives the path of a probe that may pass without a token. The root
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
