package api

// AgentCard makes an agent discoverable: 001, "Pillar 2: AgentCard CR". It is
// read in kagenti.io/v1alpha1 and, as published, in agent.kagenti.dev/v1alpha1.
type AgentCard = Resource[AgentCardSpec]

// AgentCardSpec says which pods to ask, where and how often. One of selector
// and targetRef is required.
type AgentCardSpec struct {
	// Selector picks pods by label, whatever their workload's kind.
	Selector *LabelSelector `json:"selector,omitempty"`
	// TargetRef names one workload instead.
	TargetRef *TargetRef `json:"targetRef,omitempty"`
	// Endpoint is where a pod serves its card.
	Endpoint *CardEndpoint `json:"endpoint,omitempty"`
	// SyncPeriod is how often a card is fetched, as a Go duration. Default 30s.
	SyncPeriod *string `json:"syncPeriod,omitempty"`
	// Metadata describes the agent where its own card is silent.
	Metadata *CardMetadata `json:"metadata,omitempty"`
	// IdentityBinding ties the card to a SPIFFE identity. Only the published
	// agent.kagenti.dev has it; rendering carries it along.
	IdentityBinding *IdentityBinding `json:"identityBinding,omitempty"`
}

// LabelSelector is Kubernetes' own: all of it has to match.
type LabelSelector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []struct {
		Key string `json:"key"`
		// Operator is In, NotIn, Exists or DoesNotExist.
		Operator string   `json:"operator"`
		Values   []string `json:"values,omitempty"`
	} `json:"matchExpressions,omitempty"`
}

// CardEndpoint is where a pod serves its card.
type CardEndpoint struct {
	// Path is by default "/.well-known/agent.json".
	Path *string `json:"path,omitempty"`
	// Port is by default 8081, the agent's own.
	Port *int `json:"port,omitempty"`
	// Scheme is "http" (the default) or "https".
	Scheme *string `json:"scheme,omitempty"`
}

// CardMetadata is the static part of a card.
type CardMetadata struct {
	// Name for people. Default: the AgentCard's own.
	Name *string `json:"name,omitempty"`
	// Description in a sentence.
	Description *string `json:"description,omitempty"`
	// Tags to find the agent by.
	Tags []string `json:"tags,omitempty"`
}

// IdentityBinding ties a card to a SPIFFE identity.
type IdentityBinding struct {
	// TrustDomain the identity has to be of. Default: the operator's.
	TrustDomain *string `json:"trustDomain,omitempty"`
	// Strict isolates an agent whose card does not hold. Default false.
	Strict *bool `json:"strict,omitempty"`
}
