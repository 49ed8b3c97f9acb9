// Package api holds AgentBuild, which describes one container image built from one Git
// revision (source 000, "AgentBuild CRD").
//
// Published manifests of the kagenti operator are valid here unchanged. Fields
// that the operator never had say so in their comment.
//
// +groupName=agent.kagenti.dev
// +versionName=v1alpha1
package api

//go:generate go tool controller-gen crd:crdVersions=v1 paths=. output:crd:dir=../../templates/crds

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/render/process/copies"
)

// AgentBuild builds one container image from one Git revision.
//
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ab;abuild,categories=armature
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Commit",type=string,JSONPath=`.status.source.git.commitSha`,priority=1
// +kubebuilder:printcolumn:name="Run",type=string,JSONPath=`.status.pipelineRunName`,priority=1
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.status.builtImage`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AgentBuild struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   AgentBuildSpec   `json:"spec"`
	Status AgentBuildStatus `json:"status,omitempty"`
}

// AgentBuildList is a list of them.
type AgentBuildList = copies.List[AgentBuild]

// DeepCopy returns a copy that shares nothing with b.
func (b *AgentBuild) DeepCopy() *AgentBuild { return copies.Of(b) }

// DeepCopyObject returns a copy that shares nothing with b.
func (b *AgentBuild) DeepCopyObject() runtime.Object { return copies.Of(b) }

// AgentBuildSpec says what to build, how, and where the image goes.
//
// +kubebuilder:validation:XValidation:rule="!has(self.platforms) || !has(self.builder) || self.builder == 'buildkit'",fieldPath=".platforms",message="needs builder: buildkit; the others build for the platform of their node alone"
// +kubebuilder:validation:XValidation:rule="!has(self.platformNodes) || has(self.platforms)",fieldPath=".platformNodes",message="has no effect without platforms: name them, or remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.trigger) || !has(self.trigger.pullRequest) || has(self.report)",fieldPath=".trigger.pullRequest",message="needs spec.report: its server is asked for pull requests, and who may start a build"
type AgentBuildSpec struct {
	// Source names the Git revision to build.
	Source SourceSpec `json:"source"`

	// Pipeline adjusts or replaces the steps of the mode's template. If omitted, the
	// template runs unchanged.
	// +optional
	Pipeline *PipelineSpec `json:"pipeline,omitempty"`

	// BuildArgs are passed to the image build as NAME=VALUE (parameter build-args).
	// Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=128
	BuildArgs []Parameter `json:"buildArgs,omitempty"`

	// Secrets are files for the Dockerfile's RUN --mount=type=secret,id=ID. They are in
	// no argument, environment variable or layer. Default: none. (Armature)
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=32
	Secrets []BuildSecret `json:"secrets,omitempty"`

	// Network set to none leaves the Dockerfile's programs without a network; base
	// images are still pulled. If omitted, they have the pod's network. (Armature)
	// +optional
	// +kubebuilder:validation:Enum=none
	Network string `json:"network,omitempty"`

	// Cache keeps layers for the next build, with BuildKit and buildpacks. If omitted, a
	// build keeps the layers of all stages beside its image, or those of the image if
	// its buildOutput has imageRepoCredentials, or none in a mode that attests.
	// (Armature)
	// +optional
	Cache *BuildCache `json:"cache,omitempty"`

	// BuildOutput is the image to push. If omitted, set the parameter "image" in
	// pipeline.parameters.
	// +optional
	BuildOutput *BuildOutput `json:"buildOutput,omitempty"`

	// CleanupAfterBuild deletes the PipelineRun of a build that succeeded, with its pods
	// and volumes, once the result is in status; retention says how many are kept. It
	// never deletes failed runs. Default true.
	// +optional
	// +kubebuilder:default=true
	CleanupAfterBuild *bool `json:"cleanupAfterBuild,omitempty"`

	// Mode selects the template ConfigMap pipeline-template-<mode>. Shipped: dev,
	// buildpack-dev, dev-local, dev-external, preprod, prod, custom; any other name
	// selects your own template. Default dev.
	// +optional
	// +kubebuilder:default=dev
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="must be the end of a ConfigMap name, such as dev or enterprise: use lower-case letters, digits and '-'"
	Mode string `json:"mode,omitempty"`

	// Builder builds the image, if the mode offers a choice: buildkit, kaniko and
	// buildah use a Dockerfile, buildpacks does not. If omitted, the first that applies
	// is used: the builder of a step that pipeline.steps adjusts, the one whose step
	// alone has a parameter of pipeline.parameters, the template's, which is buildkit in
	// shipped modes. (Armature)
	// +optional
	// +kubebuilder:validation:Enum=buildkit;kaniko;buildah;buildpacks
	Builder string `json:"builder,omitempty"`

	// Platforms of the image, such as linux/arm64. Each is built by its own task;
	// several are pushed as one index. Only buildkit supports this. If omitted, the
	// image is for the platform of the node that builds it. (Armature)
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:Enum=linux/amd64;linux/arm64;linux/arm/v7;linux/ppc64le;linux/s390x;linux/riscv64
	Platforms []string `json:"platforms,omitempty"`

	// PlatformNodes says where each platform is built: Native, on nodes of its
	// architecture; Any, on the same nodes as the rest of the build, which suffices for
	// a Dockerfile that cross-compiles and needs emulation for one that runs programs of
	// the platform. Default Native. (Armature)
	// +optional
	// +kubebuilder:validation:Enum=Native;Any
	PlatformNodes PlatformNodes `json:"platformNodes,omitempty"`

	// Labels are added to the PipelineRun. Default: none.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations are added to the PipelineRun. Default: none.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Timeout of the whole run, such as 45m. Default: the template's pipeline-timeout,
	// otherwise the controller's. (Armature)
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration such as 45m; leave it out for the template's timeout"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// Trigger starts a run when the branch that source.sourceRevision names has another
	// commit, and builds further branches, tags and pull requests. If omitted, what is pushed
	// starts nothing by itself. It requires source.sourceRepository. (Armature)
	// +optional
	Trigger *SourceTrigger `json:"trigger,omitempty"`

	// Report shows the state of each run as the status armature/NAMESPACE/NAME of its commit,
	// and on open pull requests. If omitted, nothing is shown. It requires
	// source.sourceRepository. (Armature)
	// +optional
	Report *Report `json:"report,omitempty"`

	// Priority among the waiting builds of this namespace, if the controller limits how
	// many run at once: higher goes first, then the older build. Default 0. (Armature)
	// +optional
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	Priority int32 `json:"priority,omitempty"`

	// Retries says how often a failed run is retried, and after which failures. Default:
	// no retries. (Armature)
	// +optional
	Retries *Retries `json:"retries,omitempty"`

	// Retention limits the finished runs that are kept. If omitted, cleanupAfterBuild
	// decides about succeeded runs, and failed ones are kept. (Armature)
	// +optional
	Retention *Retention `json:"retention,omitempty"`

	// OnChange decides what happens if the spec changes during a run: Queue lets the run
	// finish and then builds the change, Cancel stops the run first, Ignore lets it
	// finish and builds nothing. Default Queue. (Armature)
	// +optional
	// +kubebuilder:default=Queue
	// +kubebuilder:validation:Enum=Queue;Cancel;Ignore
	OnChange ChangePolicy `json:"onChange,omitempty"`

	// OnTemplateChange decides what happens if the template or a step changes: Rebuild
	// builds again, according to OnChange; Ignore does not. Default Rebuild. (Armature)
	// +optional
	// +kubebuilder:default=Rebuild
	// +kubebuilder:validation:Enum=Rebuild;Ignore
	OnTemplateChange TemplatePolicy `json:"onTemplateChange,omitempty"`

	// Cancel stops the run under way, lets its finally tasks run, and starts no
	// other while it is true. Default false. (Armature)
	// +optional
	Cancel bool `json:"cancel,omitempty"`

	// ServiceAccountName of the build's pods. Default: the controller's setting.
	// (Armature)
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// Pod has settings of the build's pods. If omitted, those of the steps apply.
	// (Armature)
	// +optional
	Pod *PodSettings `json:"pod,omitempty"`

	// Workspace is the volume that the steps share. Default: 1Gi of the default storage
	// class, for one run. (Armature)
	// +optional
	Workspace *Workspace `json:"workspace,omitempty"`
}

// PipelineSpec adjusts or replaces what the template runs.
type PipelineSpec struct {
	// Namespace is where the template and step ConfigMaps are looked up first; then the
	// controller's namespace, then the build's. If omitted, the controller's namespace
	// comes first. In any other namespace, a ConfigMap counts only if it has the label
	// share.armature.dev/NAMESPACE with the value "true" for the build's namespace.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// Steps adjust the template's steps by name. If any of them names a configMap, the
	// list is the whole pipeline, in this order; a step of the template with the same
	// name still supplies its defaults. If omitted, the template's steps run.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Steps []Step `json:"steps,omitempty"`

	// Parameters are passed to every step that declares them and override the
	// template's. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=128
	Parameters []Parameter `json:"parameters,omitempty"`

	// Workspaces bind further workspaces of the steps by name. If omitted, only source,
	// git-credentials and registry-credentials are bound. (Armature)
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Workspaces []WorkspaceBinding `json:"workspaces,omitempty"`
}

// Step is one step of the pipeline, or an adjustment of the template's.
type Step struct {
	// Name of the step, which is the name of the Tekton task.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="must be a DNS label such as unit-tests: use lower-case letters, digits and '-'"
	Name string `json:"name"`

	// ConfigMap with the step's task-spec.yaml. If omitted, the template's step with
	// this name is adjusted.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ConfigMap string `json:"configMap,omitempty"`

	// Enabled set to false leaves the step out. Default: the template's setting,
	// otherwise true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`

	// Parameters are passed only to this step and override all others. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Parameters []Parameter `json:"parameters,omitempty"`

	// RequiredParameters must have a value from the build or the template. Default: the
	// template's.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	RequiredParameters []string `json:"requiredParameters,omitempty"`

	// WhenExpressions must all be true for the step to run. Default: the template's.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	WhenExpressions []WhenExpression `json:"whenExpressions,omitempty"`
}

// WhenExpression compares an input with values.
type WhenExpression struct {
	// Input is compared; it may refer to $(params.NAME) or
	// $(tasks.STEP.results.NAME).
	// +kubebuilder:validation:MaxLength=4096
	Input string `json:"input"`

	// Operator is in or notin.
	// +kubebuilder:validation:Enum=in;notin
	Operator string `json:"operator"`

	// Values to compare with; at least one.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	Values []string `json:"values"`
}

// Parameter is a named value: a string, an array or an object.
//
// +kubebuilder:validation:XValidation:rule="(has(self.value) ? 1 : 0) + (has(self.array) ? 1 : 0) + (has(self.object) ? 1 : 0) <= 1",message="has more than one of value, array and object: keep the one of the parameter's type"
type Parameter struct {
	// Name of the parameter.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// Value of a string parameter; it may refer to $(tasks.STEP.results.NAME). Default:
	// the empty string, unless array or object is set. It has at most 32 KiB, like each
	// text of array and object.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Value *string `json:"value,omitempty"`

	// Array is the value of an array parameter. (Armature)
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=32768
	Array []string `json:"array,omitempty"`

	// Object is the value of an object parameter. (Armature)
	// +optional
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=64
	Object map[string]string `json:"object,omitempty"`

	// Required is a note of the template's author; a build's own parameters ignore it.
	// Default false.
	// +optional
	Required *bool `json:"required,omitempty"`

	// Description for people.
	// +optional
	Description string `json:"description,omitempty"`
}

// BuildOutput names the image to push.
type BuildOutput struct {
	// Image is the repository below the registry, such as team/weather. A
	// placeholder in angle brackets is replaced by the build's name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`

	// ImageTag is the tag to push.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ImageTag string `json:"imageTag"`

	// ImageRegistry is the registry's host, with its port or path if it has one.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ImageRegistry string `json:"imageRegistry"`

	// ImageRepoCredentials names a kubernetes.io/dockerconfigjson Secret in this
	// namespace. If omitted, the image is pushed without credentials.
	// +optional
	ImageRepoCredentials *corev1.LocalObjectReference `json:"imageRepoCredentials,omitempty"`

	// Labels of the image (parameter image-labels). Default: none. (Armature)
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations of the image's manifest (parameter image-annotations). Default: none.
	// (Armature)
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// BuildSecret is one key of a Secret, for the Dockerfile.
type BuildSecret struct {
	// ID by which the Dockerfile names it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_-][A-Za-z0-9._-]*$')",message="must be letters, digits, '-', '_' and '.', not '.' first, such as npm-token"
	ID string `json:"id"`

	// Name of a Secret in this namespace with the label
	// armature.dev/credentials: build.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Key of the Secret. Default: the id.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// BuildCache is a cache in a registry.
type BuildCache struct {
	// Registry is the image with the cache, such as
	// registry.example.com/team/weather-cache. Whoever can write to it decides what is
	// built, so two builds should share it only if they trust each other. The login is
	// that of the workspace pull-credentials. Default: the tag NAMESPACE.NAME-cache of
	// this build beside its image.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._:/-]*$') && self.contains('/')",message="must be a repository with its registry, such as registry.example.com/team/weather-cache"
	Registry string `json:"registry,omitempty"`

	// Mode max caches the layers of all stages, min those of the image; off
	// nothing. Default max.
	// +optional
	// +kubebuilder:default=max
	// +kubebuilder:validation:Enum=max;min;off
	Mode string `json:"mode,omitempty"`
}

// PodSettings are settings of the build's pods.
type PodSettings struct {
	// NodeSelector restricts the nodes. Default: any node.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Tolerations let the pods run on tainted nodes. Default: none.
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// Resources of the task that builds the image (the one with the result
	// IMAGE_DIGEST), or of every task if none has it. Default: those of the steps.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// SecurityContext of the pods. Default: those of the steps.
	// +optional
	SecurityContext *corev1.PodSecurityContext `json:"securityContext,omitempty"`

	// AutomountServiceAccountToken mounts the ServiceAccount's token into all of the
	// build's pods, for steps of your own that call the Kubernetes API. A Dockerfile or
	// a test can then read it. Default false.
	// +optional
	AutomountServiceAccountToken bool `json:"automountServiceAccountToken,omitempty"`
}

// Workspace is the volume that the steps share.
type Workspace struct {
	// Size of the volume, and the limit of a task's own copy of the source. Default 1Gi.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`

	// StorageClassName of the volume. Default: the cluster's default class.
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`

	// AccessMode of the volume. Default ReadWriteOnce.
	// +optional
	// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteMany;ReadWriteOncePod
	AccessMode corev1.PersistentVolumeAccessMode `json:"accessMode,omitempty"`

	// Keep uses one volume for all runs of this build, so that caches survive. Default
	// false: each run has its own.
	// +optional
	Keep bool `json:"keep,omitempty"`
}

// WorkspaceBinding binds a workspace that a step declares.
//
// +kubebuilder:validation:XValidation:rule="(has(self.secret) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.persistentVolumeClaim) ? 1 : 0) + (has(self.emptyDir) && self.emptyDir ? 1 : 0) == 1",message="must name exactly one of secret, configMap, persistentVolumeClaim and emptyDir: true"
type WorkspaceBinding struct {
	// Name of the workspace, as the step declares it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Secret in this namespace.
	// +optional
	Secret *corev1.LocalObjectReference `json:"secret,omitempty"`

	// ConfigMap in this namespace.
	// +optional
	ConfigMap *corev1.LocalObjectReference `json:"configMap,omitempty"`

	// PersistentVolumeClaim in this namespace.
	// +optional
	PersistentVolumeClaim *corev1.LocalObjectReference `json:"persistentVolumeClaim,omitempty"`

	// EmptyDir set to true gives each task its own volume.
	// +optional
	EmptyDir bool `json:"emptyDir,omitempty"`
}
