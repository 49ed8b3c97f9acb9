package api

// TokenExchange configures the identity infrastructure of one workload: 001,
// "Pillar 1: TokenExchange CR". Without one, the defaults hold.
type TokenExchange = Resource[TokenExchangeSpec]

// TokenExchangeSpec is IdentitySpec for one workload.
type TokenExchangeSpec struct {
	// TargetRef names the workload. Required.
	TargetRef TargetRef `json:"targetRef"`

	IdentitySpec `json:",inline"`
}

// IdentitySpec is what TokenExchange says for one workload and RenderConfig
// for all of them.
type IdentitySpec struct {
	// SPIFFE is about the workload's SPIFFE identity. Default: enabled.
	SPIFFE *SPIFFESpec `json:"spiffe,omitempty"`
	// ClientRegistration is about the workload's client at the identity
	// provider. Default: enabled, with Keycloak.
	ClientRegistration *ClientRegistrationSpec `json:"clientRegistration,omitempty"`
	// Inbound is about tokens that arrive. Default: enabled, validating.
	Inbound *struct {
		// Enabled injects auth-proxy. Default true.
		Enabled *bool `json:"enabled,omitempty"`
		// Port is where auth-proxy listens. Default 8080.
		Port *int `json:"port,omitempty"`
		// TargetPort is where the agent listens. Default 8081.
		TargetPort *int `json:"targetPort,omitempty"`
		// Validation says what a token has to be.
		Validation *ValidationSpec `json:"validation,omitempty"`
	} `json:"inbound,omitempty"`
	// Outbound is about tokens that leave. Default: enabled, exchanging.
	Outbound *OutboundSpec `json:"outbound,omitempty"`
	// TokenExchange is the short form of 001, "Migration Example".
	TokenExchange *struct {
		// Issuer is another spelling of inbound.validation.issuer, which wins if both
		// are set.
		Issuer *string `json:"issuer,omitempty"`
	} `json:"tokenExchange,omitempty"`
}

// SPIFFESpec configures spiffe-helper.
type SPIFFESpec struct {
	// Enabled injects spiffe-helper. Default true. With false the client ID is
	// the client's name, and no token is waited for.
	Enabled *bool `json:"enabled,omitempty"`
	// TrustDomain is the SPIFFE trust domain. Default "cluster.local".
	TrustDomain *string `json:"trustDomain,omitempty"`
	// SocketPath is the Workload API's socket, as a path or unix:// URL.
	// Default "/run/spire/agent-sockets/agent.sock".
	SocketPath *string `json:"socketPath,omitempty"`
	// SocketVolume is how the socket gets into the pod: "csi" (the SPIFFE CSI
	// driver, the default) or "hostPath" (the socket's directory on the node,
	// which Pod Security "baseline" forbids).
	SocketVolume *string `json:"socketVolume,omitempty"`
	// OutputFormat is "jwt" (the default) or "x509". x509 writes the X.509 SVID
	// next to the JWT SVID, which client-registration reads in either case.
	OutputFormat *string `json:"outputFormat,omitempty"`
	// Audience is the JWT SVID's. Default "kagenti-agents".
	Audience *string `json:"audience,omitempty"`
}

// ClientRegistrationSpec configures client-registration.
type ClientRegistrationSpec struct {
	// Enabled injects client-registration. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// Provider is "keycloak" (the default), "aws" or "gcp". If it is omitted and only
	// one of the blocks below is set, it is that block's.
	Provider *string `json:"provider,omitempty"`
	// Keycloak is read with provider keycloak.
	Keycloak *KeycloakSpec `json:"keycloak,omitempty"`
	// AWS is required with provider aws.
	AWS *AWSSpec `json:"aws,omitempty"`
	// GCP is required with provider gcp.
	GCP *GCPSpec `json:"gcp,omitempty"`
}

// KeycloakSpec registers the workload as an OAuth client of a Keycloak realm.
type KeycloakSpec struct {
	// URL is Keycloak's base URL as the pod reaches it.
	// Default "http://keycloak.kagenti-system.svc:8080".
	URL *string `json:"url,omitempty"`
	// Realm is where the client is made. Default "default".
	Realm *string `json:"realm,omitempty"`
	// AdminCredentialsSecret names the Secret, in the workload's namespace, with
	// the keys KEYCLOAK_ADMIN_USERNAME and KEYCLOAK_ADMIN_PASSWORD. It is
	// referenced, never read. Default "keycloak-admin-secret".
	AdminCredentialsSecret *string `json:"adminCredentialsSecret,omitempty"`
	// ClientNameTemplate is the client's display name, and its ID where SPIFFE
	// is off. It may hold {{.PodName}}, {{.PodNamespace}}, {{.PodIP}},
	// {{.NodeName}}, {{.ServiceAccount}}, {{.WorkloadName}} and
	// {{.WorkloadKind}}. Default "{{.PodNamespace}}/{{.WorkloadName}}".
	ClientNameTemplate *string `json:"clientNameTemplate,omitempty"`
	// TokenExchangeEnabled lets the client exchange tokens (RFC 8693).
	// Default true.
	TokenExchangeEnabled *bool `json:"tokenExchangeEnabled,omitempty"`
}

// AWSSpec is web identity federation: a JWT SVID of its own audience is
// exchanged for credentials of an IAM role, by the AWS SDK itself, which reads
// the rendered aws-config file.
type AWSSpec struct {
	// RoleARN is the IAM role that trusts the SPIFFE trust domain as an OIDC
	// provider: arn:aws:iam::123456789012:role/weather-agent. Required.
	RoleARN *string `json:"roleArn,omitempty"`
	// Region of the STS endpoint. Required.
	Region *string `json:"region,omitempty"`
	// SessionName shows in CloudTrail. Default: the workload's name.
	SessionName *string `json:"sessionName,omitempty"`
	// Audience is the JWT SVID's for AWS. Default "sts.amazonaws.com".
	Audience *string `json:"audience,omitempty"`
	// STSEndpoint overrides the regional endpoint. Default: AWS's own.
	STSEndpoint *string `json:"stsEndpoint,omitempty"`
}

// GCPSpec is Workload Identity Federation: a JWT SVID of its own audience is
// exchanged at Google's STS, by Google's client libraries, which read the
// rendered gcp-credentials.json.
type GCPSpec struct {
	// WorkloadIdentityProvider is the provider's full resource name:
	// projects/123/locations/global/workloadIdentityPools/pool/providers/spire,
	// with or without the leading //iam.googleapis.com/. Required.
	WorkloadIdentityProvider *string `json:"workloadIdentityProvider,omitempty"`
	// ServiceAccountEmail is the service account to act as. Omitted, the
	// federated identity acts directly.
	ServiceAccountEmail *string `json:"serviceAccountEmail,omitempty"`
	// ProjectID is the project that quota is charged to. Omitted, none is.
	ProjectID *string `json:"projectId,omitempty"`
	// Audience is the JWT SVID's for Google. Default: the provider's name.
	Audience *string `json:"audience,omitempty"`
}

// ValidationSpec says which inbound tokens are good.
type ValidationSpec struct {
	// Enabled checks tokens at all. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// Issuer is the token's "iss". Default: the realm of clientRegistration.
	Issuer *string `json:"issuer,omitempty"`
	// JWKSURL is where the issuer's keys are, as the pod reaches it. Default:
	// the realm's protocol/openid-connect/certs.
	JWKSURL *string `json:"jwksUrl,omitempty"`
	// Audience has to be among the token's "aud". "self", the default, is the
	// workload's own SPIFFE ID, or its client name with SPIFFE off. "any" takes
	// every audience.
	Audience *string `json:"audience,omitempty"`
	// RequiredScopes have all to be in the token's "scope". Default: none.
	RequiredScopes []string `json:"requiredScopes,omitempty"`
	// BypassPaths are paths that need no token, with * for anything but "/".
	// Default: /.well-known/*, /healthz, /readyz, /livez. The HTTP probes of the
	// workload's own containers are added to them.
	BypassPaths []string `json:"bypassPaths,omitempty"`
}

// OutboundSpec configures envoy-proxy and proxy-init.
type OutboundSpec struct {
	// Enabled injects envoy-proxy and proxy-init. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// TrafficInterception sends the pod's traffic through Envoy.
	TrafficInterception *TrafficInterceptionSpec `json:"trafficInterception,omitempty"`
	// NoProxy are hosts that applications call past AuthBridge's forward proxy, as in
	// the variable NO_PROXY. Default: none but loopback.
	NoProxy []string `json:"noProxy,omitempty"`
	// TokenExchange says what tokens become on their way out.
	TokenExchange *OutboundTokenExchangeSpec `json:"tokenExchange,omitempty"`
}

// TrafficInterceptionSpec configures the iptables rules of proxy-init.
type TrafficInterceptionSpec struct {
	// Enabled injects proxy-init. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// ProxyPort is Envoy's outbound listener. Default 15123.
	ProxyPort *int `json:"proxyPort,omitempty"`
	// InboundProxyPort is Envoy's inbound listener. Default 15124.
	InboundProxyPort *int `json:"inboundProxyPort,omitempty"`
	// ProxyUID is the user of auth-proxy and envoy-proxy, whose own traffic is
	// left alone. Default 1337.
	ProxyUID *int `json:"proxyUid,omitempty"`
	// ExcludePorts are destination ports that leave the pod directly. Default
	// [8080]. The list replaces the default; the identity provider's port is
	// always left out, because client-registration talks to it before Envoy is
	// up.
	ExcludePorts []int `json:"excludePorts,omitempty"`
	// ExcludeInboundPorts are ports that are reached without Envoy. Default:
	// none. auth-proxy's own port is always left out.
	ExcludeInboundPorts []int `json:"excludeInboundPorts,omitempty"`
}

// OutboundTokenExchangeSpec says what outbound tokens are exchanged for.
type OutboundTokenExchangeSpec struct {
	// Enabled exchanges tokens. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// TokenURL is the RFC 8693 endpoint. Default: the realm's
	// protocol/openid-connect/token.
	TokenURL *string `json:"tokenUrl,omitempty"`
	// DefaultTarget is for destinations that no rule matches. Default:
	// audience "downstream-service".
	DefaultTarget *TargetSpec `json:"defaultTarget,omitempty"`
	// DestinationRules are tried in order; the first match wins. A list in a
	// TokenExchange replaces that of RenderConfig.
	DestinationRules []DestinationRule `json:"destinationRules,omitempty"`
}

// TargetSpec is what a token is exchanged for.
type TargetSpec struct {
	// Audience of the new token. Required if a target is set.
	Audience *string `json:"audience,omitempty"`
	// Scopes of the new token. Default: openid.
	Scopes []string `json:"scopes,omitempty"`
}

// DestinationRule is a target for some destinations.
type DestinationRule struct {
	// Match selects destinations.
	Match struct {
		// Host is a host name, without a port, where * matches the characters of one
		// label and ** matches any. Required.
		Host string `json:"host"`
	} `json:"match"`
	// Target says what the token becomes. Required unless passthrough is true.
	Target *TargetSpec `json:"target,omitempty"`
	// TokenURL overrides the endpoint for these destinations.
	TokenURL *string `json:"tokenUrl,omitempty"`
	// Passthrough leaves the token as it is. Default false.
	Passthrough *bool `json:"passthrough,omitempty"`
}

// TokenExchangeStatus is observed by a controller and ignored by rendering.
type TokenExchangeStatus struct {
	Phase              string          `json:"phase,omitempty"`
	Message            string          `json:"message,omitempty"`
	ConfigMapName      string          `json:"configMapName,omitempty"`
	ConfiguredPods     int             `json:"configuredPods"`
	IdentityStatus     *IdentityStatus `json:"identityStatus,omitempty"`
	ObservedGeneration int64           `json:"observedGeneration,omitempty"`
	Conditions         []Condition     `json:"conditions,omitempty"`
}

// IdentityStatus is the state of the identity infrastructure.
type IdentityStatus struct {
	SPIFFEEnabled      bool `json:"spiffeEnabled,omitempty"`
	IDPRegistered      bool `json:"idpRegistered,omitempty"`
	InboundProxyReady  bool `json:"inboundProxyReady,omitempty"`
	OutboundProxyReady bool `json:"outboundProxyReady,omitempty"`
}
