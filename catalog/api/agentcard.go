// Package api holds AgentCard, which makes agents known to the catalog (source
// 001, "Pillar 2: AgentCard CR"). The same spec is published as
// agent.kagenti.dev/v1alpha1: see catalog/kinds/agentcard_kagenti.go.
//
// +groupName=kagenti.io
// +versionName=v1alpha1
package api

//go:generate go tool controller-gen crd:crdVersions=v1 paths=. paths=../kinds output:crd:dir=../../templates/crds/catalog

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process/copies"
)

// GroupVersion is that of AgentCard in source 001.
var GroupVersion = schema.GroupVersion{Group: keys.LabelPrefix, Version: "v1alpha1"}

// AddToScheme registers AgentCard.
func AddToScheme(scheme *runtime.Scheme) error {
	copies.AddKind[AgentCard](scheme, GroupVersion)
	return nil
}

// AgentCard registers the agents in a set of pods with the catalog: what they can do and
// how to reach them.
//
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=acard,categories=armature
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.cards[0].card.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Signature",type=string,JSONPath=`.status.cards[0].signature`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.discoveredPods`
// +kubebuilder:printcolumn:name="Errors",type=integer,JSONPath=`.status.syncErrors`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.cards[0].card.version`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AgentCard struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   AgentCardSpec   `json:"spec"`
	Status AgentCardStatus `json:"status,omitempty"`
}

// AgentCardList is a list of AgentCards.
type AgentCardList = copies.List[AgentCard]

// DeepCopyObject returns a copy that shares nothing with c.
func (c *AgentCard) DeepCopyObject() runtime.Object { return copies.Of(c) }

// AgentCardSpec says which pods to ask, where and how often.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector) != has(self.targetRef)",message="set either selector, with the labels of the pods, or targetRef, with the workload: one of them, not both"
type AgentCardSpec struct {
	// Selector selects pods of the namespace by label, for any kind of workload. If
	// omitted, targetRef is required.
	// +optional
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="an empty selector selects every pod of the namespace: give matchLabels"
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// TargetRef names one workload of the namespace instead. If omitted, selector is
	// required.
	// +optional
	TargetRef *TargetRef `json:"targetRef,omitempty"`
	// Endpoint is where a pod serves its card.
	// +optional
	Endpoint *CardEndpoint `json:"endpoint,omitempty"`
	// SyncPeriod is how often a card is fetched, such as 30s. Default 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be a duration of at least one second, such as 30s or 5m"
	SyncPeriod string `json:"syncPeriod,omitempty"`
	// Metadata describes the agent where its own card does not.
	// +optional
	Metadata *CardMetadata `json:"metadata,omitempty"`
	// IdentityBinding ties the card to a SPIFFE identity. The catalog copies it and does
	// not check it.
	// +optional
	IdentityBinding *IdentityBinding `json:"identityBinding,omitempty"`
}

// TargetRef names a workload: anything with a pod selector or a pod template.
type TargetRef struct {
	// APIVersion of the workload. Default apps/v1.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion,omitempty"`
	// Kind of the workload, such as Deployment.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// Name of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// CardEndpoint is where a pod serves its card.
type CardEndpoint struct {
	// Path of the card. Default: /.well-known/agent-card.json, then
	// /.well-known/agent.json.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.contains(' ')",message="must begin with / and hold no spaces, such as /.well-known/agent.json"
	Path string `json:"path,omitempty"`
	// Port of the pod. Default 8081.
	// +optional
	// +kubebuilder:default=8081
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// Scheme is http or https. Default http. A certificate is checked against the
	// name <pod IP> and the system's authorities.
	// +optional
	// +kubebuilder:default=http
	// +kubebuilder:validation:Enum=http;https
	Scheme string `json:"scheme,omitempty"`
}

// CardMetadata is the static part of a card.
type CardMetadata struct {
	// Name for people. Default: the AgentCard's own.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// Description in a sentence.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Description string `json:"description,omitempty"`
	// Tags by which the agent is found.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=128
	Tags []string `json:"tags,omitempty"`
}

// IdentityBinding ties a card to a SPIFFE identity.
type IdentityBinding struct {
	// TrustDomain of the identity. Default: the operator's.
	// +optional
	TrustDomain string `json:"trustDomain,omitempty"`
	// Strict isolates an agent whose card is not valid. Default false.
	// +optional
	Strict bool `json:"strict,omitempty"`
}

// Phase of an AgentCard.
type Phase string

const (
	// PhasePending: no pod is ready.
	PhasePending Phase = "Pending"
	// PhaseActive: every ready pod gave its card.
	PhaseActive Phase = "Active"
	// PhaseDegraded: some ready pods gave their card.
	PhaseDegraded Phase = "Degraded"
	// PhaseFailed: no ready pod gave its card; what is shown is the last good one.
	PhaseFailed Phase = "Failed"
)

// ConditionDiscovered is true when the last answer was good. ConditionSigned is true when the
// cards of all pods have valid signatures; its reason is the worst verdict.
const (
	ConditionDiscovered = "Discovered"
	ConditionSigned     = "Signed"
)

// Verdicts on the signatures of a card.
const (
	SignatureUnsigned   = "Unsigned"
	SignatureValid      = "Valid"
	SignatureInvalid    = "Invalid"
	SignatureUnknownKey = "UnknownKey"
)

// Signature says whether a card is signed, and by whom.
type Signature struct {
	// Verdict is Unsigned, Valid, Invalid (the card is not what was signed, or a signature
	// is malformed) or UnknownKey (no configured key has signed it).
	// +optional
	Verdict string `json:"signature,omitempty"`
	// SignedBy is the name of the issuer whose key a valid signature is of.
	// +optional
	SignedBy string `json:"signedBy,omitempty"`
}

// ConditionToolsLocked of an MCPServer or RemoteMCPServer is true when it offers the tools
// that the lock of its package has. An object that no lock has is without it.
const ConditionToolsLocked = "ToolsLocked"

// AgentCardStatus is what the last syncs found. It is written only after a change, not
// at every sync.
type AgentCardStatus struct {
	// Phase is Pending, Active, Degraded or Failed.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Message explains the phase, for people.
	// +optional
	Message string `json:"message,omitempty"`
	// LastSyncTime is when a sync last found something new.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`
	// DiscoveredPods is how many pods are selected and ready.
	// +optional
	DiscoveredPods int32 `json:"discoveredPods"`
	// SyncErrors is how many of them did not return a valid card.
	// +optional
	SyncErrors int32 `json:"syncErrors"`
	// Cards by pod, the first 64 of them.
	// +optional
	// +listType=atomic
	Cards []FetchedCard `json:"cards,omitempty"`
	// ObservedGeneration is the generation that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Discovered and Signed.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Card of the first pod that returned one, and Protocol, as in agent.kagenti.dev.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	Card *apiextensionsv1.JSON `json:"card,omitempty"`
	// Protocol that the agent speaks: a2a.
	// +optional
	Protocol string `json:"protocol,omitempty"`
}

// FetchedCard is the answer of one pod.
type FetchedCard struct {
	// PodName of the pod.
	PodName string `json:"podName"`
	// PodIP that was queried.
	// +optional
	PodIP string `json:"podIP,omitempty"`
	// URL of the agent in that pod, without the card's path.
	// +optional
	URL string `json:"url,omitempty"`
	// LastFetchTime is when this version of the card was first seen; for a failing pod,
	// when it last returned a good one.
	// +optional
	LastFetchTime *metav1.Time `json:"lastFetchTime,omitempty"`
	// FetchStatus is Success or describes the failure; the card is then the last good
	// one.
	FetchStatus string `json:"fetchStatus"`
	// Signature of the card, in the fields signature and signedBy.
	Signature `json:",inline"`
	// Card as the pod returned it. Cards that would make the status too large are left
	// out.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	Card *apiextensionsv1.JSON `json:"card,omitempty"`
}

// FetchSuccess is the FetchStatus of a good answer.
const FetchSuccess = "Success"
