// +groupName=agent.kagenti.dev
// +versionName=v1alpha1

package kinds

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process/copies"
)

// published is the group in which the kagenti operator publishes AgentCard. The markers above are
// of its types, which are the only ones of this package that have a CRD.
var published = schema.GroupVersion{Group: keys.Kagenti, Version: "v1alpha1"}

// AgentCard is that of kagenti.io, under its older name.
//
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=armature
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.card.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.discoveredPods`
// +kubebuilder:printcolumn:name="Errors",type=integer,JSONPath=`.status.syncErrors`
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.status.protocol`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AgentCard struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   api.AgentCardSpec   `json:"spec"`
	Status api.AgentCardStatus `json:"status,omitempty"`
}

// AgentCardList is what a list request answers.
type AgentCardList = copies.List[AgentCard]

// DeepCopyObject returns a copy that shares nothing with c.
func (c *AgentCard) DeepCopyObject() runtime.Object { return copies.Of(c) }
