// Package api holds the objects people write for Armature: the three pillar
// CRs of source 001 (TokenExchange, AgentTrace, AgentCard) and RenderConfig.
//
// Optional values are pointers, so that false differs from unset. The
// types need no Kubernetes library, because the lean binary has to start in
// milliseconds. They are decoded strictly: an unknown field is an error.
package api

import "github.com/armature-dev/armature/functions/api/keys"

// RenderV1alpha1 is the API version of RenderConfig and ImageLock.
const RenderV1alpha1 = keys.V1alpha1

// TypeMeta says what an object is.
type TypeMeta struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
}

// ObjectMeta is the part of a Kubernetes object's metadata that rendering
// reads, and the rest of it, so that an object exported from a cluster decodes.
type ObjectMeta struct {
	Name        string            `json:"name,omitempty"`
	Namespace   string            `json:"namespace,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`

	// The fields below are accepted and ignored.

	GenerateName               any `json:"generateName,omitempty"`
	UID                        any `json:"uid,omitempty"`
	ResourceVersion            any `json:"resourceVersion,omitempty"`
	Generation                 any `json:"generation,omitempty"`
	CreationTimestamp          any `json:"creationTimestamp,omitempty"`
	DeletionTimestamp          any `json:"deletionTimestamp,omitempty"`
	DeletionGracePeriodSeconds any `json:"deletionGracePeriodSeconds,omitempty"`
	Finalizers                 any `json:"finalizers,omitempty"`
	OwnerReferences            any `json:"ownerReferences,omitempty"`
	ManagedFields              any `json:"managedFields,omitempty"`
	SelfLink                   any `json:"selfLink,omitempty"`
}

// Origin is where the author wrote an object. It never travels in YAML.
type Origin struct {
	// File is relative to the root of the package; Line counts from 1, and is
	// 0 where no line is known.
	File string
	Line int
	// Text is what the author wrote of the object; nil where nobody did.
	Text Text
}

// Text is an object as its author wrote it.
type Text interface {
	// LineOf returns the line of a field path such as spec.inbound.port, or of the
	// nearest field above it that is written; 0 where there is none.
	LineOf(field string) int
	// Has reports whether a field path is written.
	Has(field string) bool
}

// LineOf returns the line of a field path, or the line of the object if no other is known.
func (o Origin) LineOf(field string) int {
	if o.Text != nil {
		if line := o.Text.LineOf(field); line > 0 {
			return line
		}
	}
	return o.Line
}

// Has reports whether the author wrote a field path.
func (o Origin) Has(field string) bool { return o.Text != nil && o.Text.Has(field) }

// TargetRef names the workload a CR is for. It is duck-typed: any kind with a
// pod template will do.
type TargetRef struct {
	// APIVersion is the workload's; omitted, any version of the kind matches.
	APIVersion string `json:"apiVersion,omitempty"`
	// Kind is the workload's: Deployment, StatefulSet, DaemonSet, Job, CronJob
	// or any other kind with a pod template. Required.
	Kind string `json:"kind"`
	// Name is the workload's, in the namespace of the CR. Required.
	Name string `json:"name"`
}

// Resource is a custom resource with what all of them have beside their specification.
type Resource[Spec any] struct {
	TypeMeta   `json:",inline"`
	ObjectMeta `json:"metadata,omitempty"`

	Spec Spec `json:"spec"`
	// Status is observed by a controller and ignored by rendering.
	Status any `json:"status,omitempty"`

	Origin Origin `json:"-"`
}

// Condition is one observation in a status, as everywhere in Kubernetes.
type Condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	Reason             string `json:"reason,omitempty"`
	Message            string `json:"message,omitempty"`
}
