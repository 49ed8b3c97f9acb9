// Package api holds RenderedSource, which renders what a Flux source holds and
// publishes the result as an ExternalArtifact (Flux RFC-0012) of the same name.
//
// +groupName=armature.dev
// +versionName=v1alpha1
package api

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process/copies"
)

// GroupVersion of RenderedSource.
var GroupVersion = schema.GroupVersion{Group: keys.Group, Version: "v1alpha1"}

// Kind of RenderedSource.
const Kind = "RenderedSource"

// AddToScheme registers RenderedSource.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &RenderedSource{}, &RenderedSourceList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// RenderedSource renders a folder of a Flux source and publishes the result as an
// ExternalArtifact of the same name and namespace, which a Kustomization can use. It
// applies nothing.
//
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rsrc,categories=armature
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.sourceRef.name`
// +kubebuilder:printcolumn:name="Path",type=string,JSONPath=`.spec.path`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Objects",type=integer,JSONPath=`.status.artifact.objects`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RenderedSource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RenderedSourceSpec   `json:"spec"`
	Status RenderedSourceStatus `json:"status,omitempty"`
}

// RenderedSourceList is a list of them.
type RenderedSourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RenderedSource `json:"items"`
}

// DeepCopy returns a copy that shares nothing with s.
func (s *RenderedSource) DeepCopy() *RenderedSource { return copies.Of(s) }

// DeepCopyObject returns a copy that shares nothing with s.
func (s *RenderedSource) DeepCopyObject() runtime.Object { return copies.Of(s) }

// DeepCopyObject returns a copy that shares nothing with l.
func (l *RenderedSourceList) DeepCopyObject() runtime.Object { return copies.Of(l) }

// RenderedSourceSpec says what to render and how often to check the result.
//
// +kubebuilder:validation:XValidation:rule="!has(self.verify) || !has(self.verify.origin) || self.sourceRef.kind == 'OCIRepository'",message="verify.origin is for an OCIRepository: let Flux verify the commits of a GitRepository by spec.verify there"
type RenderedSourceSpec struct {
	// SourceRef names the Flux source to render.
	SourceRef SourceReference `json:"sourceRef"`
	// Path is the folder of the source to render, such as apps/weather. If it has a
	// kustomization, that is built first. Default: the root of the source.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(s, s == '..')",message="must be a folder inside the source: leave out the leading / and .."
	Path string `json:"path,omitempty"`
	// Config is the file of the source with the RenderConfig. Default: the nearest
	// armature.yaml, from path up to the root of the source; if there is none, the default
	// settings apply.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(s, s == '..')",message="must be a file inside the source: leave out the leading / and .."
	Config string `json:"config,omitempty"`
	// Interval is how often the published archive is checked and, if it is lost or
	// changed, rendered again; a new revision of the source is rendered at once.
	// Default 10m.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be a duration of at least one second, such as 30s or 10m"
	Interval string `json:"interval,omitempty"`
	// Verify requires signatures before a render is published. By default, none are
	// required.
	// +optional
	Verify *Verification `json:"verify,omitempty"`
	// Suspend stops rendering; the last artifact stays. Default false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// Verification says which signatures are required.
//
// +kubebuilder:validation:MinProperties=1
type Verification struct {
	// Origin is the policy for the artifact that an OCIRepository fetched, in its
	// registry. If omitted, no signature is required.
	// +optional
	Origin *PolicyReference `json:"origin,omitempty"`
	// Images is the policy for each image in the rendered objects; an image without a
	// digest is refused. If omitted, no signatures are required.
	// +optional
	Images *PolicyReference `json:"images,omitempty"`
}

// PolicyReference names a ConfigMap of the same namespace. Its key policy.yaml has a
// VerifyPolicy, and its other keys are the files that the policy names: public keys,
// roots or a trusted root. The policy must not need any service except the registry.
type PolicyReference struct {
	// Name of the ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Namespace may only be the RenderedSource's own: a reference to another one is
	// refused with the reason AccessDenied. Default: the RenderedSource's own.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// SourceReference names a Flux source.
type SourceReference struct {
	// Kind of the source.
	// +kubebuilder:validation:Enum=GitRepository;OCIRepository;Bucket;ExternalArtifact
	Kind string `json:"kind"`
	// Name of the source.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Namespace of the source. Default: the RenderedSource's own. Any other is refused
	// with the reason AccessDenied, unless the controller runs with
	// --no-cross-namespace-refs=false.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// RenderedSourceStatus is what was observed.
type RenderedSourceStatus struct {
	// ObservedGeneration is the generation of the spec that the conditions describe.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Ready and, only while they are true, Reconciling and Stalled.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// LastHandledReconcileAt is the last value of the annotation
	// reconcile.fluxcd.io/requestedAt that was acted on.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`
	// Artifact is what is published. It stays while a newer revision fails.
	// +optional
	Artifact *Artifact `json:"artifact,omitempty"`
}

// Artifact is a published render.
type Artifact struct {
	// Revision is the source's revision and the digest of the render.
	Revision string `json:"revision"`
	// Digest of the archive, sha256:….
	Digest string `json:"digest"`
	// Size of the archive in bytes.
	Size int64 `json:"size"`
	// URL of the archive.
	URL string `json:"url"`
	// LastUpdateTime is when this revision was published.
	LastUpdateTime metav1.Time `json:"lastUpdateTime"`
	// OriginRevision is the revision of the source, such as main@sha1:….
	OriginRevision string `json:"originRevision"`
	// Inputs is a digest of everything that the render depends on: the source's archive
	// and revision, the spec and the version of Armature.
	Inputs string `json:"inputs"`
	// Objects is the number of Kubernetes objects in the archive.
	Objects int32 `json:"objects"`
	// Workloads is how many of them opted in and were injected.
	// +optional
	Workloads int32 `json:"workloads,omitempty"`
}
