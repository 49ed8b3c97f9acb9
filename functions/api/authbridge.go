package api

// AuthBridgeSpec configures the profile authbridge: one proxy beside the agent
// that validates tokens on their way in and exchanges them on their way out.
type AuthBridgeSpec struct {
	// Mode is "proxy-sidecar" (the default: a reverse proxy takes the agent's port,
	// and the agent sends its requests to a forward proxy), "lite" (the same with a
	// smaller program that has no plugins but the two that are configured) or
	// "envoy-sidecar" (Envoy, which gets all traffic from iptables).
	Mode *string `json:"mode,omitempty"`
	// ClientAuth is how the proxy proves to Keycloak which client it is:
	// "federated-jwt" (the default: with the workload's JWT SVID, so that there is no
	// Secret) or "client-secret" (with a Secret that Kagenti's operator writes; the
	// only choice for a workload without SPIFFE).
	ClientAuth *string `json:"clientAuth,omitempty"`
	// MTLS is "disabled", "permissive" (TLS and plain connections arrive) or
	// "strict" (TLS alone). Default: permissive where SPIFFE identifies the workload
	// and the mode is not envoy-sidecar, which has no mTLS; else disabled.
	MTLS *string `json:"mtls,omitempty"`
}

// AgentRuntime is Kagenti's: it gives a workload its AuthBridge. It is read with
// the profile authbridge.
type AgentRuntime = Resource[AgentRuntimeSpec]

// AgentRuntimeSpec is the resource as of agent.rossoctl.dev/v1alpha1 in 2026-08.
type AgentRuntimeSpec struct {
	// Type is "agent", which opts the workload in, or "tool", which does not.
	// Required.
	Type string `json:"type"`
	// TargetRef names the workload. Required.
	TargetRef TargetRef `json:"targetRef"`
	// Identity is the earlier group's, agent.kagenti.dev.
	Identity *struct {
		// SPIFFE says in which trust domain the workload is.
		SPIFFE *struct {
			// TrustDomain is SPIFFESpec.TrustDomain.
			TrustDomain *string `json:"trustDomain,omitempty"`
		} `json:"spiffe,omitempty"`
		// AllowedAudiences are audiences of tokens that are accepted beside the
		// workload's own.
		AllowedAudiences []string `json:"allowedAudiences,omitempty"`
	} `json:"identity,omitempty"`
	// AuthBridgeMode is AuthBridgeSpec.Mode. Default: the RenderConfig's.
	AuthBridgeMode *string `json:"authBridgeMode,omitempty"`
	// MTLSMode is AuthBridgeSpec.MTLS. Default: the RenderConfig's.
	MTLSMode *string `json:"mtlsMode,omitempty"`
	// TLSBridgeMode is "disabled", the default. The operator's "enabled" needs a
	// certificate authority that the operator makes.
	TLSBridgeMode *string `json:"tlsBridgeMode,omitempty"`
	// EgressEnforcement is "enforce-redirect" (iptables send to the proxy what the
	// agent does not) or "none". Default: the RenderConfig's, which is
	// identity.outbound.trafficInterception.enabled.
	EgressEnforcement *string `json:"egressEnforcement,omitempty"`
	// InboundInterception is "reverse-proxy", the default.
	InboundInterception *string `json:"inboundInterception,omitempty"`
}
